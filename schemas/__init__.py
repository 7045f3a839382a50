"""What travels on topics: records, topic registry, codec, settings. Imports nothing of ours."""
