"""Whether an address takes a connection, in words that help."""

import asyncio
import os
import socket
from typing import NamedTuple

from schemas.errors import SettingsError

CONNECT_WITHIN_S = 4.0


class Address(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int) -> Address:
    """HOST, HOST:PORT or [IPV6]:PORT. Raises SettingsError for any other form."""
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host or "/" in text or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{text!r} is no address: write HOST:PORT, without a scheme and a path")
    return Address(host.strip("[]"), int(port))


async def refusal(address: Address) -> str | None:
    """Why it takes no connection; None if it does."""
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return f"no answer within {CONNECT_WITHIN_S:g} s"
    except socket.gaierror as error:
        return f"the name is not known ({error.strerror})"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    writer.close()
    return None
