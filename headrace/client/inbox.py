"""Where one stream's deltas wait for their reader, so that a slow one holds nobody up."""

import asyncio

from headrace.client.assembly import Assembly
from headrace.client.delta import Delta
from schemas.errors import HeadraceError
from schemas.results import Result
from schemas.tokens import TokenDelta


class Inbox:
    """The end of a stream that the reader of the log writes to.

    It never blocks and drops nothing: what waits in it is at most the answer of its own request.
    """

    def __init__(self, assembly: Assembly, *, key: bytes, tenant: str) -> None:
        self.assembly = assembly
        self.key = key
        self.tenant = tenant
        self.has_ended = False
        self._is_settled = False
        self._items: asyncio.Queue[Delta | Result | HeadraceError] = asyncio.Queue()

    @property
    def request_id(self) -> str:
        """Whose stream it is."""
        return self.assembly.request_id

    def take(self, record: TokenDelta) -> None:
        """Take a valid delta of the request."""
        delta = None if self.has_ended else self.assembly.add(record)
        if delta is not None:
            self._items.put_nowait(delta)
        if self.assembly.is_whole:
            self.finish()

    def settle(self) -> bool:
        """Whether a terminal record that was just read is the first one: later ones are void."""
        is_first = not self._is_settled
        self._is_settled = True
        return is_first

    def take_result(self, result: Result) -> None:
        """Take the terminal record. The stream goes on until `finish` if deltas are still to be read."""
        self.assembly.end(result)
        if self.assembly.is_whole:
            self.finish()

    def finish(self) -> None:
        """End the stream with its result; what no delta showed comes from there. Only the first call counts."""
        if self.has_ended or self.assembly.result is None:
            return
        self.has_ended = True
        for delta in self.assembly.rest():
            self._items.put_nowait(delta)
        self._items.put_nowait(self.assembly.result)

    def fail(self, error: HeadraceError) -> None:
        """End the stream with an error."""
        if not self.has_ended:
            self.has_ended = True
            self._items.put_nowait(error)

    async def next(self, timeout_s: float) -> Delta | Result:
        """The next delta, or the result behind the last one.

        Raises:
            TimeoutError: nothing came within `timeout_s`.
            HeadraceError: the stream cannot be read on.
        """
        if self._items.empty():
            async with asyncio.timeout(timeout_s):
                item = await self._items.get()
        else:
            item = self._items.get_nowait()
        if isinstance(item, HeadraceError):
            raise item
        return item
