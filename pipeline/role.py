"""The pipeline process: Faust inside our own event loop, ready only when it can work, stopped without losing a turn."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.tokenize import PromptPool
from pipeline.watchdog import watch
from runtime import topics
from runtime.health import Health
from runtime.logging import get_logger
from runtime.role import Role
from runtime.storage import ObjectStore
from schemas.errors import BrokerUnavailable
from schemas.names import LANES, Names
from schemas.settings import Settings

if TYPE_CHECKING:
    from pipeline.faust_app import KafkaApp

log = get_logger(__name__)

# A turn that waits for object storage may not come to an end; it is read again elsewhere.
_DRAIN_TIMEOUT_S = 10.0
_COMMIT_TIMEOUT_S = 5.0
_STOP_TIMEOUT_S = 10.0


class PipelineRole(Role):
    """Turns become batches. Stateless: any number of processes share the partitions."""

    name = "pipeline"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool = PromptPool(
            {name: model.path for name, model in settings.models.items()},
            num_processes=settings.pipeline.tokenizer_processes,
        )
        self._storage: ObjectStore | None = None
        self._app: KafkaApp | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Load the models, check the topics, join the group.

        Raises:
            SettingsError: topics are missing, or no broker or storage is named.
            ModelFileError: a model cannot be loaded.
        """
        self._ended = asyncio.get_running_loop().create_future()
        self._storage = ObjectStore(self._settings.storage)
        # The children load the models while Faust is imported and joins the group: either takes a second.
        parts = [asyncio.create_task(self._pool.start()), asyncio.create_task(self._join(self._storage))]
        try:
            await asyncio.gather(*parts)
        except BaseException:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self.stop()
            raise

    async def run(self) -> None:
        """Ends when `stop` was called, or with the error after which turns must be read again."""
        if self._ended is not None:
            await self._ended

    async def stop(self) -> None:
        """Finish the turns that were taken, commit, leave the group. After a failure: only leave."""
        ended, app = self._ended, self._app
        is_orderly = ended is not None and not ended.done()
        for watcher in self._watchers:
            watcher.cancel()
        if app is not None:
            await _leave(app, is_orderly=is_orderly)
        await self._pool.stop()
        if self._storage is not None:
            self._storage.close()
        if ended is not None and not ended.done():
            ended.set_result(None)
        elif ended is not None:
            ended.exception()  # known to `run`, or to the caller of a start that failed

    def health(self) -> Health:
        """Ready once partitions are assigned and a child can build prompts. Faust says so without any of it."""
        if self._ended is not None and self._ended.done():
            return Health(is_alive=False, detail="it has stopped or failed; the log says why")
        if self._app is None or not self._app.started:
            return Health(detail="starting")
        if not self._pool.is_ready:
            return Health(detail="no process to build prompts yet")
        if not self._app.claims.current():
            return Health(detail="no partitions assigned: rebalancing, or more processes than partitions")
        return Health(is_ready=True, detail=self._app.work.detail)

    async def _join(self, storage: ObjectStore) -> None:
        await topics.require(self._settings.kafka, _topics(self._settings))
        from pipeline.app import build_app

        app = self._app = build_app(self._settings, self._pool, storage, fail=self._fail)
        # Returns when the first assignment is complete, or when the app has crashed.
        await app.start()
        if app.crashed:
            raise _crash(app)
        works = (self._pool.run, partial(_watch_crash, app), partial(watch, app.work, app.claims))
        self._watchers = [asyncio.create_task(self._guard(work)) for work in works]

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, `run` raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


def _topics(settings: Settings) -> list[str]:
    names = Names(settings.topics.namespace, settings.topics.generation)
    return [
        topic
        for lane in LANES
        for topic in (
            names.turns(lane),
            names.refusals(lane),
            *(names.batches(model, lane) for model in settings.models),
        )
    ]


async def _watch_crash(app: "KafkaApp") -> None:
    await app.wait_until_stopped()
    raise _crash(app)


def _crash(app: "KafkaApp") -> BaseException:
    return app.crash_reason or BrokerUnavailable("Faust has stopped by itself")


async def _leave(app: "KafkaApp", *, is_orderly: bool) -> None:
    if is_orderly and app.started and not app.crashed:
        await _within(_DRAIN_TIMEOUT_S, app.finish(), "turns_still_under_way")
        await _within(_COMMIT_TIMEOUT_S, app.consumer.commit(), "commit_not_acknowledged")
    app.work.give_up_all()
    # Its thread is a daemon: where it cannot stop, the process ends all the same, and the group notices later.
    await _within(_STOP_TIMEOUT_S, app.stop(), "broker_not_told")


async def _within(timeout_s: float, step: Coroutine[Any, Any, Any], otherwise: str) -> None:
    """One step of stopping. What it leaves undone is read again by the next process: a warning, not a failure."""
    task = asyncio.create_task(step)
    _, late = await asyncio.wait([task], timeout=timeout_s)
    if late:
        log.warning(otherwise, timeout_s=timeout_s)
        task.cancel()
    else:
        task.result()
