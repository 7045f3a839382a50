"""The lane on which one partition's deltas and marks reach `tokens`: in order, one send in flight, coalesced between.

With one send in flight a lost one can leave no gap before later ones. What is produced meanwhile joins the next send,
so that the broker's work follows time and not tokens.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from consumers.transactor import OutRecord
from consumers.worker.pace import Pace
from consumers.worker.piece import Piece

# Beyond it a round takes no more: a send stays well below the broker's limit, and no request waits for all others.
_MAX_RECORDS_A_SEND = 256


class Ack(NamedTuple):
    """The broker has the first `num_sent` of the records, the first of them at `base_offset` (-1: it does not say)."""

    num_sent: int
    base_offset: int


# Sends as many of the records as fit, all or none of those; an exception means that their fate is unknown.
Send = Callable[[Sequence[OutRecord]], Awaitable[Ack]]


class Stream:
    """One request's way into the lane, at its pace. A choice that is final never waits."""

    def __init__(self, render: Callable[[Piece], OutRecord], pace: Pace) -> None:
        self._render = render
        self._pace = pace
        self._pieces: deque[Piece] = deque()
        self._due_s: float | None = None
        self._in_flight = 0
        self.acked = asyncio.Event()
        self.acked.set()

    def push(self, piece: Piece, now_s: float) -> None:
        """Add a piece; it joins the waiting one of its choice and with it moves behind the other choices'."""
        self.acked.clear()
        if self._due_s is None:
            self._due_s = now_s + self._pace.first_after_s
        last = next((waiting for waiting in reversed(self._pieces) if waiting.choice == piece.choice), None)
        if last is not None and last.can_take(piece):
            last.take(piece)
            self._pieces.remove(last)
            piece = last
        self._pieces.append(piece)

    @property
    def is_waiting(self) -> bool:
        """Whether something was pushed and not taken."""
        return bool(self._pieces)

    def due_s(self) -> float | None:
        """When something may leave next; None while there is nothing to send."""
        if any(piece.is_final for piece in self._pieces):
            return 0.0
        return self._due_s if self._pieces else None

    def take(self, now_s: float) -> list[OutRecord]:
        """What may leave now, as records: all where it is due, else the choices that are final."""
        if self._due_s is None or now_s >= self._due_s:
            leaving, staying = list(self._pieces), deque[Piece]()
            self._due_s = now_s + self._pace.interval_s
        else:
            final = {piece.choice for piece in self._pieces if piece.is_final}
            leaving = [piece for piece in self._pieces if piece.choice in final]
            staying = deque(piece for piece in self._pieces if piece.choice not in final)
        self._pieces = staying
        self._in_flight += len(leaving)
        return [self._render(piece) for piece in leaving]

    def settle(self) -> None:
        """One record is acknowledged."""
        self._in_flight -= 1
        if not self._in_flight and not self._pieces:
            self.acked.set()


class _Mark(NamedTuple):
    record: OutRecord
    acked: "asyncio.Future[None]"


class DeltaLane:
    """Sends streams and marks of one partition.

    A failed send ends the lane: the partition is taken over anew, and who waits here must be cancelled. `end_offset` is
    where the topic ended when the broker last answered: what is pushed now will stand there or behind it.
    """

    def __init__(
        self,
        send: Send,
        *,
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._on_failure = on_failure
        self._clock = clock
        self._streams: dict[Stream, None] = {}
        self._marks: deque[_Mark] = deque()
        self._unsent: deque[tuple[OutRecord, Stream | _Mark]] = deque()
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self.end_offset = 0

    def start(self, end_offset: int) -> None:
        """Begin to send; the topic ends at `end_offset` or behind it."""
        self.end_offset = end_offset
        self._task = asyncio.create_task(self._run())

    def push(self, stream: Stream, piece: Piece) -> None:
        """Add a piece to a stream."""
        stream.push(piece, self._clock())
        self._streams[stream] = None
        self.wake()

    async def mark(self, record: OutRecord) -> None:
        """Send one mark; it is acknowledged when this returns."""
        acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._marks.append(_Mark(record, acked))
        self.wake()
        await acked

    def wake(self) -> None:
        """Look at what is due now."""
        self._changed.set()

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Let the send in flight finish and send no more. What waits is left to the next owner.

        A send that takes longer than `timeout_s` is given up: nobody knows then whether it is in the log.
        """
        self._is_stopping = True
        self.wake()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                if not self._unsent:
                    self._collect()
                if self._unsent:
                    await self._send_round()
                else:
                    await self._sleep()
        except Exception as error:  # noqa: BLE001 (whatever it is: the records' fate is unknown)
            self._on_failure(error)

    def _collect(self) -> None:
        now_s = self._clock()
        while self._marks:
            mark = self._marks.popleft()
            self._unsent.append((mark.record, mark))
        for stream in list(self._streams):
            if len(self._unsent) >= _MAX_RECORDS_A_SEND:
                return
            due_s = stream.due_s()
            if due_s is not None and due_s <= now_s:
                self._unsent.extend((record, stream) for record in stream.take(now_s))
            if not stream.is_waiting:
                del self._streams[stream]

    async def _send_round(self) -> None:
        ack = await self._send([record for record, _ in self._unsent])
        for _ in range(ack.num_sent):
            _, origin = self._unsent.popleft()
            if isinstance(origin, Stream):
                origin.settle()
            elif not origin.acked.done():
                origin.acked.set_result(None)
        if ack.base_offset >= 0:
            self.end_offset = ack.base_offset + ack.num_sent

    async def _sleep(self) -> None:
        self._changed.clear()
        due = [due_s for stream in self._streams if (due_s := stream.due_s()) is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(due) - self._clock()) if due else None):
                await self._changed.wait()
