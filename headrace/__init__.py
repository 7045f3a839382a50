"""The face of headrace: its Python client, its command line, and a local Kafka and S3 for a laptop.

from headrace import Client

async with Client() as client:
    async for delta in client.stream("Why is the sky blue?"):
        print(delta.text, end="", flush=True)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import Client, Delta, TokenStream

__version__ = "0.1.0"
__all__ = ["Client", "Delta", "TokenStream", "__version__"]

_CLIENT_NAMES = frozenset({"Client", "Delta", "TokenStream"})


def __getattr__(name: str) -> Any:
    """Load the client at its first use: `headrace --help` needs neither Kafka nor S3."""
    if name not in _CLIENT_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import headrace.client

    return getattr(headrace.client, name)
