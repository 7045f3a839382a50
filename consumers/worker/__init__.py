"""The engine worker group: takes batches over, streams tokens, writes one terminal record a request."""
