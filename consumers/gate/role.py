"""`headrace serve gate`: the life of the process. It polls always and never waits for work while it does."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from consumers.control import ControlReader
from consumers.gate.admission import rules_of
from consumers.gate.collector import Collector, kept_ms
from consumers.gate.ownership import Ownership
from consumers.gate.partition import Shared
from consumers.gate.takeover import input_topics
from consumers.renewing import RenewingProducer
from runtime.clock import BrokerClock
from runtime.health import Health
from runtime.kafka import close, make_consumer
from runtime.logging import get_logger
from runtime.metrics import TURNS_PARKED
from runtime.role import Role
from runtime.storage import ObjectStore
from runtime.topics import partition_counts, require
from schemas.errors import SettingsError, StorageUnavailable
from schemas.names import LANES, Names
from schemas.settings import Settings

log = get_logger(__name__)

# A gate owns a number on all of its topics. With equal counts this assignor gives them to one member; aiokafka's own
# default deals the partitions of all topics out like cards, and two gates would fence each other for ever.
ASSIGNOR = RangePartitionAssignor

_POLL_MS = 200
_MAX_POLL_RECORDS = 500
_TICK_S = 1.0
# A loop that has not polled for so long is stuck: the process should be restarted.
_STUCK_S = 60.0
_CLOSE_TIMEOUT_S = 5.0
_BUCKET_RETRY_S = 2.0


class GateRole(Role):
    """One gate. As many as there are partitions can share the work; each partition has one owner."""

    name = "gate"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = Names(settings.topics.namespace, settings.topics.generation)
        self._stopping = asyncio.Event()
        self._finished = asyncio.Event()
        self._finished.set()
        self._last_poll_s = time.monotonic()
        self._objects: ObjectStore | None = None
        self._producer: RenewingProducer | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._ownership: Ownership | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._control: ControlReader | None = None

    async def start(self) -> None:
        """Connect and join the group. Partitions are taken over as they are assigned.

        Raises:
            SettingsError: topics are missing or have another number of partitions than is configured.
        """
        try:
            await self._connect()
        except BaseException:
            await self.stop()
            raise

    async def run(self) -> None:
        """Poll until `stop`."""
        if self._stopping.is_set():
            return
        self._finished.clear()
        polling = asyncio.create_task(self._poll())
        stopping = asyncio.create_task(self._stopping.wait())
        following = {self._control.following} if self._control else set()
        try:
            await asyncio.wait({polling, stopping, *following}, return_when=asyncio.FIRST_COMPLETED)
            for ended in {polling, *following}:
                if ended.done():
                    ended.result()
        finally:
            for task in (polling, stopping):
                task.cancel()
            await asyncio.gather(polling, stopping, return_exceptions=True)
            self._finished.set()

    async def stop(self) -> None:
        """Stop polling, finish what is decided, commit, leave the group."""
        self._stopping.set()
        await self._finished.wait()
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        try:
            if self._ownership is not None:
                await self._ownership.stop()
        finally:
            await self._close()

    def health(self) -> Health:
        """Alive while it polls; ready when every partition that is assigned to it is at work."""
        idle_s = time.monotonic() - self._last_poll_s
        ownership = self._ownership
        if ownership is None:
            return Health(is_alive=idle_s < _STUCK_S, detail="connecting")
        detail = f"partitions {ownership.numbers}, last poll {idle_s:.1f} s ago"
        return Health(is_alive=idle_s < _STUCK_S, is_ready=ownership.is_settled, detail=detail)

    @property
    def paused(self) -> set[TopicPartition]:
        """The input partitions from which nothing is taken just now."""
        return set() if self._consumer is None else set(self._consumer.paused())

    async def _close(self) -> None:
        if self._control is not None:
            await _within_time("control", self._control.stop())
        if self._producer is not None:
            await _within_time("producer", self._producer.stop())
        if self._consumer is not None:
            await _within_time("consumer", close(self._consumer))
        if self._objects is not None:
            self._objects.close()

    async def _connect(self) -> None:
        settings, names = self._settings, self._names
        outputs = [*(names.turns(lane) for lane in LANES), names.sessions, names.dead_letters]
        topics = [*input_topics(names), names.control, *outputs]
        await require(settings.kafka, topics)
        self._objects = ObjectStore(settings.storage)
        # Not waited for: only sessions need storage, and they wait by themselves.
        self._preparing = asyncio.create_task(_prepare_bucket(self._objects))
        self._producer = RenewingProducer(settings.kafka)
        await self._producer.start()
        await self._check_partitions(topics)
        clock = BrokerClock()
        # Before any request is admitted.
        self._control = ControlReader(settings.kafka, names, max_age_s=settings.gate.max_age_s, clock=clock)
        await self._control.start()
        self._consumer = make_consumer(
            settings.kafka, group=names.gate_group, partition_assignment_strategy=(ASSIGNOR,)
        )
        shared = Shared(
            names=names,
            rules=rules_of(settings),
            max_parked=settings.gate.max_parked_turns,
            producer=self._producer,
            objects=self._objects,
            clock=clock,
            cancel_of=self._control.book.find,
            collector=Collector(self._objects, names, clock, kept_ms=kept_ms(settings)),
        )
        ownership = Ownership(self._consumer, settings.kafka, shared)
        self._control.listen(ownership.on_cancel)
        self._consumer.subscribe(input_topics(names), listener=ownership)
        await self._consumer.start()
        self._ownership = ownership

    async def _poll(self) -> None:
        consumer, ownership = self._consumer, self._ownership
        if consumer is None or ownership is None:
            raise RuntimeError("run() comes after start()")
        next_tick_s = 0.0
        while True:
            ownership.advance()
            batches = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MAX_POLL_RECORDS)
            self._last_poll_s = time.monotonic()
            for records in batches.values():
                ownership.deliver(records)
            ownership.throttle()
            TURNS_PARKED.set(ownership.num_parked)
            if self._last_poll_s >= next_tick_s:
                next_tick_s = self._last_poll_s + _TICK_S
                ownership.tick()

    async def _check_partitions(self, topics: list[str]) -> None:
        """The partition number is the identity of the gate's work: it must mean the same on every topic."""
        wanted = self._settings.topics.partitions
        for topic, found in (await partition_counts(self._settings.kafka, topics)).items():
            if found != wanted:
                raise SettingsError(
                    f"topic {topic} has {found} partitions, topics.partitions says {wanted}: counts never change, "
                    "use the number that the topics were created with, or a new topics.generation"
                )


async def _prepare_bucket(objects: ObjectStore) -> None:
    while True:
        try:
            await objects.ensure_bucket()
        except StorageUnavailable as error:
            log.warning("storage_unavailable", error=error.message)
            await asyncio.sleep(_BUCKET_RETRY_S)
        else:
            return


async def _within_time(what: str, closing: Coroutine[Any, Any, None]) -> None:
    try:
        await asyncio.wait_for(closing, _CLOSE_TIMEOUT_S)
    except TimeoutError:
        log.warning("close_timed_out", what=what)
