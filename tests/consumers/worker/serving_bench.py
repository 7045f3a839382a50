"""A server of requests with an engine, a broker and a storage that do what a test says."""

import asyncio
from collections.abc import Sequence as Records
from types import SimpleNamespace
from typing import Any

import msgspec
from aiokafka import TopicPartition

from consumers.transactor import OutRecord
from consumers.worker.deltas import Ack, DeltaLane
from consumers.worker.piece import Ending
from consumers.worker.port import OnOutput
from consumers.worker.records import RecordWriter
from consumers.worker.request import RunningRequest
from consumers.worker.results import result
from consumers.worker.serving import RequestServer
from engine.types import GenerationOutput, GenerationRequest
from schemas.batches import Sequence
from schemas.codec import JOURNAL
from schemas.names import Names
from schemas.settings import Settings
from schemas.tokens import TokenDelta
from tests.consumers.worker.builders import ACCEPTED_AT_MS, HASHES, SOURCE


class ScriptedEngine:
    """Speaks when it is told to. What it holds back of a text comes out when it is cancelled, as with the real one."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.submitted = asyncio.Event()
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self._hangs = hangs
        self._lengths: dict[int, int] = {}

    def submit(self, request: GenerationRequest, on_output: OnOutput) -> None:
        self._lengths = {index: len(request.emitted.get(index, ())) for index in range(request.sampling.num_choices)}
        self._request, self._on_output = request, on_output
        self.submitted.set()

    def say(self, choice: int, *, finish_reason: Any = None) -> None:
        index = self._lengths[choice]
        self._lengths[choice] += 1
        self._put(choice, index, [100 + index], f"<{index}>", finish_reason)
        if finish_reason is not None:
            del self._lengths[choice]

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if not self._hangs:
            for choice, index in list(self._lengths.items()):
                self._put(choice, index, [], "held", "cancelled")
            self._lengths.clear()

    def drop(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def _put(self, choice: int, index: int, token_ids: list[int], text: str, finish_reason: Any) -> None:
        self._on_output(
            GenerationOutput(
                request_id=self._request.request_id,
                choice=choice,
                index=index,
                token_ids=token_ids,
                text=text,
                finish_reason=finish_reason,
            )
        )


class SlowClaims:
    """Gives the content when it is there."""

    def __init__(self) -> None:
        self.asked, self.is_there = asyncio.Event(), asyncio.Event()

    async def whole(self, member: Sequence) -> Sequence:
        self.asked.set()
        await self.is_there.wait()
        return msgspec.structs.replace(member, prompt_token_ids=[1, 2, 3], claim=None)


class Bench:
    """A server with its lane; what it sends is kept."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.sent: list[Any] = []
        tp = TopicPartition(*SOURCE.rsplit("-", 1))
        self.writer = RecordWriter(Names(), TopicPartition(tp.topic, int(tp.partition)), worker="w", build="b")
        self.lane = DeltaLane(self._send, on_failure=self._failed)
        clock = SimpleNamespace(now_ms=lambda: ACCEPTED_AT_MS + 1_000)
        self.claims = SlowClaims()
        context: Any = SimpleNamespace(
            settings=Settings(), engine=engine, clock=clock, hashes=HASHES, claims=self.claims
        )
        self.server = RequestServer(context, self.lane, self.writer)

    async def _send(self, records: Records[OutRecord]) -> Ack:
        self.sent += [JOURNAL.decode(record.value) for record in records]
        return Ack(len(records), len(self.sent))

    def _failed(self, error: Exception) -> None:
        raise error

    @property
    def deltas(self) -> list[TokenDelta]:
        return [record for record in self.sent if isinstance(record, TokenDelta)]

    def check(self, request: RunningRequest, ending: Ending) -> None:
        """What was streamed is what the result has, and each choice has one end, the request one closing delta."""
        terminal = result(request, ending, now_ms=ACCEPTED_AT_MS, build="b")
        for choice in terminal.choices:
            own = [delta for delta in self.deltas if delta.choice == choice.index]
            assert [token for delta in own for token in delta.token_ids] == choice.token_ids
            assert "".join(delta.text for delta in own) == choice.content
            assert [delta.finish_reason for delta in own if delta.finish_reason] == [choice.finish_reason]
        closing = [delta for delta in self.deltas if delta.usage is not None]
        assert [(delta.status, delta.error) for delta in closing] == [(ending.status, ending.error)]
        assert closing[0].usage == terminal.usage


async def served(request: RunningRequest, script: Any, *, hangs: bool = False) -> tuple[Bench, Ending]:
    bench = Bench(ScriptedEngine(hangs=hangs))
    bench.lane.start(0)
    serving = asyncio.create_task(bench.server.serve(request))
    try:
        await script(bench, serving)
        return bench, await serving
    finally:
        await bench.lane.stop()
