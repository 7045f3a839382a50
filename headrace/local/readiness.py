"""Waiting until a server answers, and not a moment longer than it lives."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.local.ports import LOOPBACK
from headrace.local.process import ManagedProcess
from schemas.errors import LocalStackError

POLL_S = 0.05
ANSWER_WITHIN_S = 5.0

Probe = Callable[[], Awaitable[bool]]


async def port_open(port: int) -> bool:
    """Whether something on 127.0.0.1 accepts connections on the port."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            await _closed(writer)
    except (OSError, TimeoutError):
        return False
    return True


async def http_ok(port: int, path: str) -> bool:
    """Whether GET on 127.0.0.1 is answered with status 200 (RFC 9112). No redirects, no body."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nConnection: close\r\n\r\n".encode())
                status_line = await reader.readline()
            finally:
                await _closed(writer)
    except (OSError, TimeoutError):
        return False
    return status_line.split()[1:2] == [b"200"]


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait for it: a loop that ends right after would leave it to the collector."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def wait_ready(process: ManagedProcess, probe: Probe, timeout_s: float) -> None:
    """Ask `probe` until it says yes.

    Raises LocalStackError, with the end of the log, if the process ends or the time is up.
    """
    name = process.command.name
    try:
        async with asyncio.timeout(timeout_s):
            while process.returncode is None:
                if await probe():
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise LocalStackError(_with_log(process, f"{name} was not ready within {timeout_s:g} s")) from None
    raise LocalStackError(_with_log(process, f"{name} ended with code {process.returncode} before it was ready"))


def _with_log(process: ManagedProcess, what: str) -> str:
    return f"{what}; the end of {process.command.log_path}:\n{process.log_tail()}"
