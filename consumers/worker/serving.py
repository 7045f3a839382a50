"""Runs one request: from the mark before its first forward pass to the acknowledgement of its last delta."""

import asyncio
import itertools
from contextlib import suppress
from functools import partial
from typing import Any

from consumers.worker.context import WorkerContext
from consumers.worker.deltas import DeltaLane, Stream
from consumers.worker.pace import pace_of
from consumers.worker.piece import Ending
from consumers.worker.records import RecordWriter
from consumers.worker.request import RunningRequest
from engine.types import GenerationOutput, GenerationRequest
from runtime.logging import get_logger
from schemas.batches import Refusal, Sequence
from schemas.errors import ClaimDamaged, ClaimMissing, DeadlineExceeded, EngineFault, JournalDamaged, ModelChanged

log = get_logger(__name__)

_MS_PER_S = 1000

# How long engine or storage may take when a request shall stop: many steps.
_STOP_S = 5.0


class RequestServer:
    """Serves the requests of one partition."""

    def __init__(self, context: WorkerContext, lane: DeltaLane, writer: RecordWriter) -> None:
        self._context = context
        self._lane = lane
        self._writer = writer
        self._numbers = itertools.count()

    async def serve(self, request: RunningRequest) -> Ending:
        """Generate what is missing and stream it; returns when every choice's final delta is acknowledged."""
        pace = pace_of(request.envelope, self._context.settings.worker)
        stream = Stream(partial(self._writer.delta, request), pace)
        ending = await self._follow_claim(request) or self._early_ending(request)
        ending = ending or await self._generate(request, stream)
        for piece in request.close(ending):
            self._lane.push(stream, piece)
        await stream.acked.wait()
        return ending

    async def _follow_claim(self, request: RunningRequest) -> Ending | None:
        """Fetch what was too large for the sequence's record; how the request ends where that cannot be had.

        Also one that need not run is made whole: its result has what it was asked.
        """
        sequence = request.sequence
        if sequence is None or sequence.claim is None:
            return None
        is_decided = request.is_over or request.is_decided
        fetching = asyncio.create_task(self._context.claims.whole(sequence))
        try:
            async with asyncio.timeout(None if is_decided else self._seconds_left(request)):
                if not is_decided:
                    await _within_patience(fetching, request.halted)
                request.member = await fetching
        except TimeoutError:
            return request.cancelled or _expired()
        except (ClaimMissing, ClaimDamaged) as error:
            return Ending("failed", error.body)
        finally:
            fetching.cancel()
        return None

    def _early_ending(self, request: RunningRequest) -> Ending | None:
        """How a request ends that need not run. Final deltas that were logged come first: they have decided."""
        member = request.member
        if request.is_over or request.is_decided:
            return request.ending
        if isinstance(member, Refusal):
            is_late = member.error.code == DeadlineExceeded.code
            return Ending("expired" if is_late else "failed", member.error.shortened())
        if request.cancelled is not None or self._seconds_left(request) <= 0:
            return request.cancelled or _expired()
        if request.has_gap:
            error = JournalDamaged("deltas of this request are missing from the log; send it again under a new id")
            return Ending("failed", error.body)
        if (member.hashes.model, member.hashes.tokenizer) != (
            self._context.hashes.model,
            self._context.hashes.tokenizer,
        ):
            return Ending("failed", ModelChanged(f"{member.model} has changed meanwhile; send the request again").body)
        return None

    async def _generate(self, request: RunningRequest, stream: Stream) -> Ending:
        sequence = request.sequence
        if sequence is None:
            raise EngineFault("a refusal has nothing to generate")
        request.has_admission_mark = True
        await self._lane.mark(self._writer.admitted(request))
        request.admitted_at_ms = self._context.clock.now_ms()
        generation = self._generation(request, sequence)
        try:
            self._context.engine.submit(generation, partial(self._hear, request, stream))
            async with asyncio.timeout(self._seconds_left(request)):
                await request.halted.wait()
            if not request.is_over:
                return await self._stop(request, generation, request.cancelled or _expired())
        except TimeoutError:
            return await self._stop(request, generation, _expired())
        except EngineFault:
            # The engine's thread has ended, and so will this process: the request is left to a worker that has one.
            never: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
            return await never
        finally:
            self._context.engine.drop(generation.request_id)
        return request.ending

    async def _stop(self, request: RunningRequest, generation: GenerationRequest, ending: Ending) -> Ending:
        """Cancelled or too late. The engine gives the text that it held back; if it hangs, we do not wait for it."""
        request.stop_as(ending)
        self._context.engine.cancel(generation.request_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                while not request.is_over:
                    request.halted.clear()
                    await request.halted.wait()
        return request.ending if request.is_over else ending

    def _generation(self, request: RunningRequest, sequence: Sequence) -> GenerationRequest:
        envelope = request.envelope
        return GenerationRequest(
            # Unique in the process: tenants may share an id, and a request may come back while its last run ends.
            request_id=f"{envelope.request_id}/{self._writer.source}/{request.epoch}/{next(self._numbers)}",
            prompt_token_ids=sequence.prompt_token_ids,
            sampling=sequence.sampling,
            emitted=request.emitted,
            tenant=envelope.tenant,
            priority_class=envelope.priority_class,
            priority=envelope.priority,
        )

    def _hear(self, request: RunningRequest, stream: Stream, output: GenerationOutput) -> None:
        try:
            piece = request.absorb(output, self._context.clock.now_ms())
        except EngineFault as error:
            log.exception("engine_fault", request=request.envelope.request_id)
            request.fault = error.body
            piece = None
        if piece is not None:
            self._lane.push(stream, piece)
        if request.is_over:
            request.halted.set()

    def _seconds_left(self, request: RunningRequest) -> float:
        return (request.envelope.deadline_ms - self._context.clock.now_ms()) / _MS_PER_S


async def _within_patience(work: "asyncio.Task[Any]", halted: asyncio.Event) -> None:
    """Wait for `work`, but not for long when nobody wants it any more: then TimeoutError."""
    halting = asyncio.create_task(halted.wait())
    try:
        await asyncio.wait({work, halting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        halting.cancel()
    if not work.done():
        async with asyncio.timeout(_STOP_S):
            await asyncio.wait({work})


def _expired() -> Ending:
    error = DeadlineExceeded("the deadline passed before the request ended; send it again with a later one")
    return Ending("expired", error.body)
