"""Brings the partitions that a worker owns in line with what its group gives it: takes over, proves, lets go."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from aiokafka import TopicPartition

from consumers.worker.context import WorkerContext
from consumers.worker.failures import FailureLimit
from consumers.worker.ownership import Claim, take_over
from consumers.worker.partition import RELEASE_STEP_S, OwnedPartition
from consumers.worker.records import RecordWriter
from runtime.logging import get_logger
from runtime.metrics import TAKEOVERS
from schemas.errors import Fenced, HeadraceError

log = get_logger(__name__)

# After a fence our group may not have heard yet that the partition is another's. Taking it back at once would fence the
# rightful owner; after this share of a session timeout, three heartbeats, we know.
_FENCE_PAUSE = 0.3
# What cannot be let go of by then (the broker is away) is left to its next owner, who fences us.
_RELEASE_ALL_S = 6 * RELEASE_STEP_S


class PartitionKeeper:
    """One job for each partition whose state is not as it should be; jobs of different partitions run in parallel.

    `fatal` ends with the error that must end the process. `on_change` is called when a partition is settled or a
    request has ended.
    """

    def __init__(self, context: WorkerContext, group: str, *, on_change: Callable[[], None]) -> None:
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._context = context
        self._group = group
        self._on_change = on_change
        self._fence_pause_s = _FENCE_PAUSE * context.settings.kafka.session_timeout_ms / 1000
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._assigned: set[TopicPartition] = set()
        self._settled: set[TopicPartition] = set()
        self._jobs: dict[TopicPartition, asyncio.Task[None]] = {}
        self._limits: dict[TopicPartition, FailureLimit] = {}
        self._generation = 0
        self._is_stable = asyncio.Event()
        self._is_taking = True
        self._is_leaving = False
        self._is_closed = False

    @property
    def num_open(self) -> dict[TopicPartition, int]:
        """How many requests of each owned partition are under way."""
        return {tp: partition.num_open for tp, partition in self._owned.items()}

    @property
    def num_unsettled(self) -> int:
        """How many assigned partitions are not at work yet."""
        return len(self._assigned - self._settled)

    def settled(self, tp: TopicPartition) -> OwnedPartition | None:
        """The owner of a partition that is at work."""
        return self._owned[tp] if tp in self._settled else None

    def suspend(self) -> None:
        """A rebalance is under way: nothing is begun until it ends."""
        if not self._is_leaving:
            self._is_stable.clear()

    def assign(self, assigned: set[TopicPartition]) -> None:
        """A rebalance gives us these. Those that stayed must be proven: somebody may have been between."""
        if self._is_leaving:
            return
        self._assigned = assigned
        self._settled.clear()
        self._generation += 1
        self._is_stable.set()
        for tp in assigned | set(self._owned) | set(self._jobs):
            self._look_at(tp)

    def stop_taking(self) -> None:
        """Take no more partitions over; those that are owned stay."""
        self._is_taking = False

    async def drained(self) -> None:
        """Return when no request is under way."""
        await asyncio.gather(*(partition.drained() for partition in self._owned.values()))

    async def release_all(self) -> None:
        """Let go of everything, whatever a rebalance may still give us."""
        self._is_leaving = True
        self._assigned = set()
        self._settled.clear()
        self._is_stable.set()
        for tp in set(self._owned) | set(self._jobs):
            self._look_at(tp)
        try:
            async with asyncio.timeout(_RELEASE_ALL_S):
                while self._jobs:
                    await asyncio.wait(set(self._jobs.values()))
        except TimeoutError:
            log.warning("partitions_left", partitions=sorted(f"{tp.topic}-{tp.partition}" for tp in self._jobs))
        self._is_closed = True
        for job in self._jobs.values():
            job.cancel()

    def _look_at(self, tp: TopicPartition) -> None:
        job = self._jobs.get(tp)
        if self._is_closed:
            return
        if job is None and not self._is_right(tp):
            self._jobs[tp] = asyncio.create_task(self._settle(tp))
            self._jobs[tp].add_done_callback(partial(self._reap, tp))
        elif job is not None and tp not in self._assigned and tp not in self._owned and not job.cancelling():
            # A takeover that is no longer ours to make would only fence the rightful owner.
            job.cancel()

    def _is_right(self, tp: TopicPartition) -> bool:
        partition = self._owned.get(tp)
        if tp not in self._assigned or (partition is None and not self._is_taking):
            return partition is None
        return partition is not None and partition.failure is None and tp in self._settled

    def _reap(self, tp: TopicPartition, job: asyncio.Task[None]) -> None:
        del self._jobs[tp]
        error = None if job.cancelled() else job.exception()
        if error is None:
            self._look_at(tp)
        elif not self.fatal.done():
            self.fatal.set_exception(error)

    async def _settle(self, tp: TopicPartition) -> None:
        while not self._is_right(tp):
            partition = self._owned.get(tp)
            if partition is None:
                await self._take_over(tp)
            elif tp not in self._assigned or partition.failure is not None:
                await self._let_go(tp, partition)
            else:
                await self._prove(tp, partition)

    async def _take_over(self, tp: TopicPartition) -> None:
        await self._is_stable.wait()
        writer = RecordWriter(self._context.names, tp, worker=self._context.worker, build=self._context.build)
        claim = Claim(self._context, self._group, tp, writer)
        generation, started_at_s = self._generation, time.monotonic()
        try:
            tenure = await take_over(claim)
        except HeadraceError as error:
            await self._bear(tp, error)
            return
        partition = OwnedPartition(claim, tenure, on_change=self._on_partition)
        partition.start()
        self._owned[tp] = partition
        TAKEOVERS.inc()
        log.info(
            "partition_taken_over",
            partition=writer.source,
            epoch=tenure.epoch,
            offset=tenure.offset,
            num_known=len(tenure.journal),
            seconds=round(time.monotonic() - started_at_s, 3),
        )
        self._begin(tp, generation)

    async def _prove(self, tp: TopicPartition, partition: OwnedPartition) -> None:
        await self._is_stable.wait()
        generation = self._generation
        if await partition.is_still_ours():
            self._begin(tp, generation)

    def _begin(self, tp: TopicPartition, generation: int) -> None:
        # Another rebalance since then: it must be proven again that nobody was between.
        if generation == self._generation and tp in self._assigned and self._is_stable.is_set():
            self._settled.add(tp)
            self._on_change()

    async def _let_go(self, tp: TopicPartition, partition: OwnedPartition) -> None:
        self._settled.discard(tp)
        await partition.release()
        del self._owned[tp]
        if partition.failure is not None:
            await self._bear(tp, partition.failure)

    async def _bear(self, tp: TopicPartition, failure: Exception) -> None:
        """Count a failure if the partition is still ours, and wait. Raises it when there were too many."""
        log.warning("partition_failed", partition=f"{tp.topic}-{tp.partition}", error=str(failure))
        if isinstance(failure, Fenced):
            await asyncio.sleep(self._fence_pause_s)
        await self._is_stable.wait()
        if tp not in self._assigned:
            return
        verdict = self._limits.setdefault(tp, FailureLimit()).note(failure, time.monotonic())
        if not verdict.is_borne:
            raise failure
        await asyncio.sleep(verdict.pause_s)

    def _on_partition(self, tp: TopicPartition) -> None:
        partition = self._owned.get(tp)
        if partition is not None and partition.failure is not None:
            self._settled.discard(tp)
            self._look_at(tp)
        self._on_change()
