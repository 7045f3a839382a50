"""Whatever stands on a topic, through the stage of the role that takes it in: it ends in records that fit a broker."""

import asyncio
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from hypothesis import strategies as st

from consumers.gate.book import SessionBook
from consumers.gate.desk import Desk
from consumers.gate.round import Round
from consumers.transactor import OutRecord
from consumers.worker.claims import WorkerClaims
from consumers.worker.intake import take
from consumers.worker.piece import Ending
from consumers.worker.records import RecordWriter
from consumers.worker.request import RunningRequest
from consumers.worker.takeover import Duplicate
from models.catalog import LoadedModel, open_model
from pipeline.context import ModelFacts, PromptJob
from pipeline.history import SessionHistory
from pipeline.prompt_child import answer_of, facts_of
from pipeline.prompt_process import error_of
from pipeline.prompt_wire import Refused
from pipeline.stage import Stage
from pipeline.turn_claims import TurnClaims
from runtime.claims import ClaimStore
from schemas.batches import Batch, Refusal
from schemas.codec import BATCH, RESULT, TURN
from schemas.errors import EngineFault, InvalidValue, MalformedRecord, ObjectMissing
from schemas.names import Lane
from schemas.settings import ModelSettings, Settings, WorkerSettings
from tests.fuzz import samples
from tests.fuzz.damage import json_bytes, msgpack_bytes
from tests.fuzz.target import MAX_RECORD_BYTES, Target, must
from tests.fuzz.topics import NAMES, RULES, headers, keys
from tests.models.gguf_writer import write_gguf

SETTINGS = Settings(models={samples.MODEL: ModelSettings(path="unused")}, worker=WorkerSettings(model=samples.MODEL))


class Objects:
    """Object storage in a dictionary."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> None:
        """Write one object."""
        self._objects[key] = data

    async def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """Read one object."""
        if key not in self._objects:
            raise ObjectMissing(f"no object {key!r}")
        return self._objects[key]


def _fits(record: OutRecord) -> None:
    in_headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    num_bytes = len(record.key or b"") + len(record.value or b"") + in_headers
    must(num_bytes <= MAX_RECORD_BYTES, f"a record of {num_bytes} bytes for {record.topic}")


def _polled(topic: str, given: tuple[Any, ...], offset: int = 7) -> ConsumerRecord:
    value, key, record_headers = given
    return ConsumerRecord(topic, 0, offset, samples.NOW_MS, 1, key, value, None, 0, 0, tuple(record_headers))


def _check_batch(given: tuple[Any, ...]) -> None:
    """A worker: whatever it polls, all that it could say of it can be written."""
    topic = NAMES.batches(samples.MODEL)
    record = _polled(topic, given)
    writer = RecordWriter(NAMES, TopicPartition(topic, 0), worker="w", build="1")
    claims = WorkerClaims(ClaimStore(Objects()), NAMES)
    taken = take(record, SETTINGS)
    if taken.error is not None:
        _fits(writer.dead_letter(record, taken.error))
    for member in taken.members:
        request = RunningRequest(member, source=writer.source, epoch=5, input_offset=7, progress=None)
        error = member.error if isinstance(member, Refusal) else EngineFault("x" * 5_000).body
        ending = Ending("failed", error.shortened())
        said = [writer.delta(request, piece) for piece in request.close(ending)]
        said += [writer.admitted(request), writer.released(request), writer.duplicate(member, Duplicate())]
        terminal = asyncio.run(claims.fitting(writer.result(request, ending, samples.NOW_MS), now_ms=samples.NOW_MS))
        for one in [*said, *writer.end(request, terminal)]:
            _fits(one)
        assert RESULT.decode(RESULT.encode(terminal)) == terminal or "nan" in repr(terminal)


class _PoolHere:
    """The prompt pool's work without its processes: the same functions, in this one."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    async def facts(self, model: str) -> ModelFacts:
        """What is known of the one model."""
        return facts_of(self._model)

    async def build(self, job: PromptJob, *, lane: Lane = "interactive") -> list[int]:
        """Build one prompt, as a child does."""
        if job.asked is not None:
            raise InvalidValue("structures are compiled by a library with fuzzing of its own")
        answer: Any = answer_of(job, self._model, None)  # type: ignore[arg-type] # nothing is compiled
        if isinstance(answer, Refused):
            raise error_of(answer.error)
        return list(answer.token_ids)


@cache
def _tiny() -> LoadedModel:
    with tempfile.TemporaryDirectory() as folder:
        return open_model(samples.MODEL, str(write_gguf(Path(folder) / "tiny.gguf")))


def _check_turn(value: bytes) -> None:
    """The pipeline: whatever turn it can read becomes a member that a worker can read, and that fits a record."""
    try:
        turn = TURN.decode(value)
    except MalformedRecord:
        return
    objects, pool = Objects(), _PoolHere(_tiny())
    claims = TurnClaims(ClaimStore(objects), NAMES, pool)  # type: ignore[arg-type] # it builds here
    stage = Stage(SETTINGS, pool, SessionHistory(objects, max_turns=4), claims)  # type: ignore[arg-type] # likewise
    member = asyncio.run(stage.member(turn, "interactive"))
    written = BATCH.encode(Batch(members=[member]))
    must(len(written) <= MAX_RECORD_BYTES, f"a batch of {len(written)} bytes")
    (read,) = BATCH.decode(written).members
    assert read == member or "nan" in repr(member)
    if isinstance(member, Refusal):
        must(member.error.code != "internal_error", member.error.message)


def _check_gate(records: list[tuple[Any, ...]]) -> None:
    """A gate: whatever is delivered to it from requests and results, in any order, all that it writes fits a record."""
    desk = Desk(NAMES, 0, SessionBook(), RULES, max_parked=4)
    for offset, (is_result, *given) in enumerate(records):
        out = Round()
        desk.record(
            _polled(NAMES.results if is_result else NAMES.requests(), tuple(given), offset), samples.NOW_MS, out
        )
        desk.time_passed(samples.NOW_MS + 1_000 * offset, out)
        for record in [*out.writes, *(turn.record for turn in out.plain)]:
            _fits(record)


_batches = st.tuples(msgpack_bytes(samples.BATCHES), keys, headers)
_delivered = st.tuples(st.just(True), json_bytes(samples.RESULTS), keys, headers) | st.tuples(
    st.just(False), json_bytes(samples.REQUESTS), keys | st.just(b"alice"), headers
)

TARGETS = [
    Target("a worker can say how any batch ends", _batches, _check_batch),
    Target("the pipeline makes a member of any turn", msgpack_bytes(samples.TURNS), _check_turn),
    Target("the gate decides whatever comes", st.lists(_delivered, max_size=5), _check_gate),
]
