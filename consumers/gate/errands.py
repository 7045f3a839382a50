"""What one partition has to do with object storage, repeated however long that is away: only who needs it waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from consumers.gate.admission import Deposit
from consumers.gate.deposits import Held
from consumers.gate.round import Fetch, Put, Round
from consumers.transactor import Position
from runtime.claims import ClaimStore
from runtime.logging import bound, get_logger
from runtime.patience import Patience
from runtime.storage import ObjectStore
from schemas.codec import SESSION_TURN
from schemas.contents import RESULT_CONTENTS
from schemas.errors import ClaimDamaged, ClaimMissing
from schemas.results import Result

log = get_logger(__name__)

Errand = Put | Held | Fetch


class Errands:
    """Puts the objects of finished turns and the heavy fields of arriving ones, and fetches those of results.

    `done` is called with each errand that is done, `failed` with an error that is none of storage's. An object that is
    put again, after a crash, is put with the same bytes.
    """

    def __init__(
        self, objects: ObjectStore, *, done: Callable[[Errand], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._objects = objects
        self._claims = ClaimStore(objects)
        self._done = done
        self._failed = failed
        self._patience = Patience()
        self._tasks: dict[Position | None, asyncio.Task[None]] = {}

    def begin(self, out: Round) -> None:
        """Begin what a round asks for, and drop what need not be done any more."""
        for put in out.puts:
            content = put.effect.content
            self._spawn(put.position, self._put(put), request=content.request_id, session=content.session)
        for held in out.deposits:
            if isinstance(held.decision, Deposit):
                who = held.envelope
                work = self._deposit(held, held.decision)
                self._spawn(held.position, work, request=who.request_id, session=who.session)
        for fetch in out.fetches:
            result = fetch.result
            self._spawn(fetch.position, self._fetch(fetch), request=result.request_id, session=result.session)
        for held in out.dropped:
            if (task := self._tasks.get(held.position)) is not None:
                task.cancel()

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something run beside the errands for as long as the partition is owned."""
        self._spawn(None, work)

    async def stop(self) -> None:
        """Leave what is under way to the next owner."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, put: Put) -> None:
        key, content = put.effect.key, SESSION_TURN.encode(put.effect.content)
        await self._patience.of(lambda: self._objects.put(key, content), about=key, event="session_waits_for_storage")
        self._done(put)

    async def _deposit(self, held: Held, deposit: Deposit) -> None:
        await self._patience.of(
            lambda: self._claims.put(deposit.claim, deposit.content),
            about=deposit.claim.object,
            event="request_waits_for_storage",
        )
        self._done(held)

    async def _fetch(self, fetch: Fetch) -> None:
        self._done(fetch._replace(result=await self._whole(fetch.result)))

    async def _whole(self, result: Result) -> Result:
        """The result as it was before it was claimed; without choices if what was claimed is lost."""
        if (claim := result.claim) is None:
            return result
        try:
            content = await self._patience.of(
                lambda: self._claims.fetch(claim), about=claim.object, event="session_waits_for_storage"
            )
            return RESULT_CONTENTS.joined(result, content)
        except (ClaimMissing, ClaimDamaged) as error:
            # The answer is lost to its session, which stays where it was; the request itself has ended.
            log.error("result_lost", error=error.message)  # noqa: TRY400
            return msgspec.structs.replace(result, claim=None)

    def _spawn(self, position: Position | None, work: Coroutine[Any, Any, None], **context: str | None) -> None:
        # (A task logs in the context in which it was created.)
        with bound(**context):
            task = asyncio.create_task(work)
        self._tasks[position] = task
        task.add_done_callback(lambda ended: self._on_ended(position, ended))

    def _on_ended(self, position: Position | None, task: asyncio.Task[None]) -> None:
        if self._tasks.get(position) is task:
            del self._tasks[position]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
