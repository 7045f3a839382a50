"""The way out of one input partition: outputs leave in the order of the inputs, which are done when these arrive."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from pipeline.claims import Claim
from pipeline.pack import Packed, Prepared, pack
from schemas.errors import BrokerUnavailable

# A partition that holds more than this is not read on until half of it is gone: one that waits for object storage
# takes neither memory nor the others' turn.
MAX_RECORDS = 128
MAX_BYTES = 8 << 20


class Send(Protocol):
    """Hands a record to the producer; what it returns is done when the broker has acknowledged it."""

    def __call__(self, record: Packed, partition: int) -> Awaitable["asyncio.Future[Any]"]:
        """Send one record to a partition of its topic."""
        ...


class _Item(NamedTuple):
    offset: int
    prepared: "asyncio.Future[Prepared]"


class Outbox:
    """Takes the records of one claim while they are prepared, sends each when its turn has come, closes it when acked.

    Never waits for company: what is ready together with the oldest record is packed with it, and that is all. `eased`
    is called when there is less in it; `fail` with an error after which the process must end, so that the inputs are
    read again.
    """

    def __init__(
        self,
        claim: Claim,
        send: Send,
        *,
        max_tokens: int,
        eased: Callable[["Outbox"], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.claim = claim
        self._send = send
        self._max_tokens = max_tokens
        self._eased = eased
        self._fail = fail
        self._queue: deque[_Item] = deque()
        self._sizes: dict[int, int] = {}
        self._num_bytes = 0
        self._has_arrived = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    @property
    def num_open(self) -> int:
        """Records that are in here and not acknowledged."""
        return len(self._sizes)

    def has(self, offset: int) -> bool:
        """Whether the record at `offset` is one of them."""
        return offset in self._sizes

    @property
    def is_full(self) -> bool:
        """Whether no more should be put in."""
        return self.num_open >= MAX_RECORDS or self._num_bytes >= MAX_BYTES

    @property
    def is_half_empty(self) -> bool:
        """Whether one that was full may be filled again."""
        return self.num_open <= MAX_RECORDS // 2 and self._num_bytes <= MAX_BYTES // 2

    def put(self, offset: int, num_bytes: int, prepared: "asyncio.Future[Prepared]") -> None:
        """Take the record at `offset`, whose output `prepared` will be. Offsets must rise."""
        self._sizes[offset] = num_bytes
        self._num_bytes += num_bytes
        self._is_empty.clear()
        self._queue.append(_Item(offset, prepared))
        self._has_arrived.set()

    async def drained(self) -> None:
        """Returns when all that was put in is acknowledged."""
        await self._is_empty.wait()

    def discard(self) -> None:
        """Drop what has not been sent. What has been sent may still be acknowledged, which is harmless."""
        self._task.cancel()
        for item in self._queue:
            item.prepared.cancel()
        self._queue.clear()

    async def _run(self) -> None:
        while True:
            for record in pack(await self._ready(), max_tokens=self._max_tokens):
                acknowledged = await self._send(record, self.claim.partition.partition)
                acknowledged.add_done_callback(partial(self._acknowledged, record))

    async def _ready(self) -> list[Prepared]:
        while not self._queue:
            self._has_arrived.clear()
            await self._has_arrived.wait()
        ready = [await self._queue[0].prepared]
        self._queue.popleft()
        while self._queue and self._queue[0].prepared.done():
            ready.append(self._queue.popleft().prepared.result())
        return ready

    def _acknowledged(self, record: Packed, acknowledged: "asyncio.Future[Any]") -> None:
        if acknowledged.cancelled() or (error := acknowledged.exception()) is not None:
            cause = "it was cancelled" if acknowledged.cancelled() else str(error)
            self._fail(BrokerUnavailable(f"a record for {record.topic} was not acknowledged: {cause}"))
            return
        self.claim.close(record.offsets)
        for offset in record.offsets:
            self._num_bytes -= self._sizes.pop(offset)
        if not self._sizes:
            self._is_empty.set()
        self._eased(self)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
