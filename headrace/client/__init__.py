"""The Python client: produce a request, read its tokens as they come, or read a stream again from any index."""

from headrace.client.client import Client
from headrace.client.delta import Delta
from headrace.client.stream import TokenStream

__all__ = ["Client", "Delta", "TokenStream"]
