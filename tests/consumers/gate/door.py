"""A door in front of a TCP service: what is behind it is real, and away while the door is shut."""

import asyncio
from asyncio import StreamReader, StreamWriter
from types import TracebackType


class Door:
    """Listens on a free port of loopback and passes bytes on to `target` (HOST:PORT) while it is open."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._opened = asyncio.Event()
        self._opened.set()
        self._writers: set[StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Door":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def endpoint(self) -> str:
        """Its address."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def shut(self) -> None:
        """Cut every connection, and those that come."""
        self._opened.clear()
        for writer in self._writers:
            writer.close()

    def open(self) -> None:
        """Let connections through again."""
        self._opened.set()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if not self._opened.is_set():
            writer.close()
            return
        inner_reader, inner_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, inner_writer}
        if not self._opened.is_set():
            # Shut in the meantime.
            self.shut()
            return
        for source, sink in [(reader, inner_writer), (inner_reader, writer)]:
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: StreamReader, sink: StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            # The other side hung up: so does this one.
            pass
        finally:
            self._writers.discard(sink)
            sink.close()
