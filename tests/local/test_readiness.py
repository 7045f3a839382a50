"""A probe says yes to the right answer only, and no, in good time, to whatever else a port may do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.local import kafka, readiness
from headrace.local.kafka import broker_answers
from headrace.local.ports import lease_ports
from headrace.local.process import Command, ManagedProcess
from headrace.local.readiness import http_ok, port_open, wait_ready
from schemas.errors import LocalStackError

Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def says(answer: bytes) -> Reply:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return reply


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    return


async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[int]:
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
        try:
            await reply(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.gather(*connections, return_exceptions=True)  # each ends when its client has gone


@pytest.mark.parametrize(
    ("answer", "is_ok"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nready", True),
        (b"HTTP/1.0 200\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\n\r\n200", False),
        (b"200", False),
        (b"\x00\xff\xfe", False),
        (b"", False),
    ],
)
async def test_only_status_200_is_ready(answer: bytes, is_ok: bool) -> None:
    async with serving(says(answer)) as port:
        assert await http_ok(port, "/readyz") is is_ok


@pytest.mark.parametrize("reply", [closes, is_silent])
async def test_a_server_that_does_not_answer_is_not_ready(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "ANSWER_WITHIN_S", 0.2)
    monkeypatch.setattr(kafka, "PROBE_TIMEOUT_MS", 200)
    async with serving(reply) as port:
        assert await port_open(port)
        assert not await http_ok(port, "/readyz")
        assert not await broker_answers(port)


async def test_a_port_where_nobody_listens_is_not_ready(tmp_path: Path) -> None:
    with lease_ports(("a",), book=tmp_path / "ports.json") as ports:
        assert not await port_open(ports["a"])
        assert not await http_ok(ports["a"], "/")
        assert not await broker_answers(ports["a"])


async def test_waiting_ends_with_the_process_and_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = await ManagedProcess.start(Command("x", ("sh", "-c", "echo no disk >&2; exit 4"), tmp_path / "log"))

    async def never() -> bool:
        return False

    with pytest.raises(LocalStackError, match=r"(?s)x ended with code 4 before it was ready.*no disk"):
        await wait_ready(process, never, timeout_s=20)


async def test_waiting_ends_when_time_is_up(tmp_path: Path) -> None:
    process = await ManagedProcess.start(Command("x", ("sh", "-c", "echo slow; exec sleep 1000"), tmp_path / "log"))

    async def hangs() -> bool:
        return await asyncio.Event().wait()

    with pytest.raises(LocalStackError, match=r"x was not ready within 0.2 s"):
        await wait_ready(process, hangs, timeout_s=0.2)
    await process.kill()
