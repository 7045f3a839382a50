"""The engine worker as a process: loads its model, joins its groups, streams, hands over when it is told to stop."""

import asyncio
import os
import socket
import time
from concurrent.futures import Future
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from consumers.control import ControlReader
from consumers.transactor import OutRecord
from consumers.worker.claims import WorkerClaims
from consumers.worker.context import WorkerContext
from consumers.worker.group import PartitionGroup
from consumers.worker.hang import HangWatch
from consumers.worker.host import HostedModel, load_model, model_settings
from consumers.worker.meter import watch_engine
from consumers.worker.plain import PlainProducer
from consumers.worker.port import EnginePort
from engine.thread import EngineThread
from runtime.claims import ClaimStore
from runtime.clock import BrokerClock
from runtime.health import Health
from runtime.kafka import make_admin, partition_for
from runtime.logging import get_logger
from runtime.role import Role
from runtime.storage import ObjectStore
from runtime.topics import require
from schemas.codec import MODEL
from schemas.names import LANES, Names
from schemas.settings import Settings

log = get_logger(__name__)

# Health turns red when nothing was polled for so long.
STALL_S = 30.0

# A step that hangs must not keep the process from ending.
ENGINE_STOP_S = 10.0


class WorkerRole(Role):
    """One engine worker. It joins its groups only when the model is ready, so that no partition waits for a load."""

    name = "worker"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = Names(settings.topics.namespace, settings.topics.generation)
        self._worker = settings.worker.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        self._resources = AsyncExitStack()
        self._model: HostedModel | None = None
        self._groups: list[PartitionGroup] = []
        self._is_stopping = False
        self._failed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._engine_died: asyncio.Future[None] | None = None
        self._control: ControlReader | None = None
        self._hang_watch: HangWatch | None = None

    async def start(self) -> None:
        """Load the model and connect, then join. Cleans up after itself when it fails or is cancelled."""
        model_settings(self._settings)
        try:
            await self._start()
        except BaseException:
            await self._resources.aclose()
            raise

    async def run(self) -> None:
        """Poll until `stop`; a group that cannot go on ends the process."""
        polling = [asyncio.create_task(group.run()) for group in self._groups]
        stopped = asyncio.create_task(self._stopped.wait())
        ends: list[asyncio.Future[Any]] = [*polling, stopped, *([self._engine_died] if self._engine_died else [])]
        ends += [self._control.following] if self._control else []
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stopped not in done:
                self._failed.set()
            for end in done:
                end.result()
        finally:
            for task in [*polling, stopped]:
                task.cancel()
            await asyncio.gather(*polling, stopped, return_exceptions=True)

    async def stop(self) -> None:
        """Take nothing more in, let what runs finish for a while, hand the rest over, leave."""
        self._is_stopping = True
        for group in self._groups:
            group.stop_admission()
        await self._drain()
        self._stopped.set()
        await self._resources.aclose()

    def health(self) -> Health:
        """Alive while it polls and the engine steps; ready while it owns all that the groups gave it."""
        if (stalled := self._stalled()) is not None:
            return Health(is_alive=False, detail=stalled)
        if self._model is None:
            return Health(detail="the model is loading")
        if self._is_stopping:
            return Health(detail="stopping")
        if not self._groups or not all(group.has_joined and not group.is_rebalancing for group in self._groups):
            return Health(detail="joining the group")
        num_unsettled = sum(group.keeper.num_unsettled for group in self._groups)
        if num_unsettled:
            return Health(detail=f"{num_unsettled} partitions are being taken over")
        return Health(is_ready=True)

    async def _start(self) -> None:
        kafka, clock = self._settings.kafka, BrokerClock()
        objects = ObjectStore(self._settings.storage)
        self._resources.callback(objects.close)
        loading = asyncio.create_task(asyncio.to_thread(load_model, self._settings))
        await require(kafka, self._topics())
        plain, admin = PlainProducer(kafka, clock), make_admin(kafka)
        self._resources.push_async_callback(plain.stop)
        self._resources.push_async_callback(admin.close)
        await plain.start()
        await admin.start()
        # Before any request is taken in, and while the model loads.
        self._control = control = ControlReader(
            kafka, self._names, max_age_s=self._settings.gate.max_age_s, clock=clock
        )
        self._resources.push_async_callback(control.stop)
        await control.start()
        self._model = model = await loading
        model.engine.start()
        self._resources.push_async_callback(asyncio.to_thread, model.engine.stop, drain=False, timeout_s=ENGINE_STOP_S)
        self._hang_watch = HangWatch(model.engine, self._settings.worker)
        self._hang_watch.start()
        self._resources.push_async_callback(asyncio.to_thread, self._hang_watch.stop)
        watch_engine(lambda: model.engine.stats)
        self._watch(model.engine)
        await self._announce(plain, model)
        await self._join(
            WorkerContext(
                settings=self._settings,
                names=self._names,
                hashes=model.hashes,
                engine=EnginePort(model.engine, asyncio.get_running_loop()),
                plain=plain,
                admin=admin,
                claims=WorkerClaims(ClaimStore(objects), self._names),
                clock=clock,
                control=control,
                worker=self._worker,
                build=version("headrace"),
            )
        )

    def _watch(self, engine: EngineThread) -> None:
        """Let the death of the engine's thread end the process, so that another worker goes on."""
        loop = asyncio.get_running_loop()
        died: asyncio.Future[None] = loop.create_future()
        self._engine_died = died

        def tell(failed: Future[None]) -> None:
            if (error := failed.exception()) is not None and not died.done():
                died.set_exception(error)

        engine.failed.add_done_callback(lambda failed: loop.call_soon_threadsafe(tell, failed))

    async def _announce(self, plain: PlainProducer, model: HostedModel) -> None:
        key = self._settings.worker.model.encode()
        value = MODEL.encode(model.announcement(self._settings, self._worker))
        partition = partition_for(key, self._settings.topics.partitions)
        await plain.send([OutRecord(self._names.models, partition, key, value)])
        log.info("model_announced", model=self._settings.worker.model, context_length=model.context_length)

    async def _join(self, context: WorkerContext) -> None:
        batches = [self._names.batches(self._settings.worker.model, lane) for lane in LANES]
        refusals = [self._names.refusals(lane) for lane in LANES]
        self._groups = [
            PartitionGroup(context, self._names.worker_group(self._settings.worker.model), batches),
            PartitionGroup(context, self._names.refusals_group, refusals),
        ]
        self._resources.push_async_callback(self._leave)
        for group in self._groups:
            await group.start()

    async def _leave(self) -> None:
        await asyncio.gather(*(group.leave() for group in self._groups))

    async def _drain(self) -> None:
        """Let what runs finish, for a while and as long as this worker can."""
        drained = asyncio.gather(*(group.keeper.drained() for group in self._groups))
        failed = asyncio.create_task(self._failed.wait())
        timeout_s = self._settings.worker.drain_timeout_s
        ends: list[asyncio.Future[Any]] = [drained, failed]
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            num_open = sum(sum(group.keeper.num_open.values()) for group in self._groups)
            log.info("handing_over", num_requests=num_open, timeout_s=timeout_s)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)

    def _stalled(self) -> str | None:
        now_s = time.monotonic()
        if any(not group.is_rebalancing and now_s - group.polled_at_s > STALL_S for group in self._groups):
            return f"nothing was polled for {STALL_S:.0f} s"
        return self._hang_watch.problem if self._hang_watch else None

    def _topics(self) -> list[str]:
        names = self._names
        lanes = [
            name for lane in LANES for name in (names.batches(self._settings.worker.model, lane), names.refusals(lane))
        ]
        return [*lanes, names.tokens, names.results, names.control, names.models, names.dead_letters]
