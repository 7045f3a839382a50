"""Turns whose request lies in an object, and sequences that do not fit a record, with a real child process."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from pipeline.history import SessionHistory
from pipeline.stage import Stage
from pipeline.tokenize import PromptPool
from pipeline.turn_claims import TurnClaims
from runtime.claims import ClaimStore
from schemas.batches import Batch, Refusal, Sequence
from schemas.claims import MAX_INLINE_BYTES, ClaimCheck, claim_for
from schemas.codec import BATCH
from schemas.contents import SEQUENCE_CONTENTS
from schemas.names import Names
from schemas.requests import ChatRequest, CompletionRequest, Message
from schemas.settings import ModelSettings, PipelineSettings, Settings
from schemas.turns import Turn
from tests.pipeline.builders import envelope
from tests.pipeline.test_history import Storage

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = Names()


class Bench:
    """A stage over objects in memory."""

    def __init__(self, pool: PromptPool) -> None:
        self.storage = Storage({})
        settings = Settings(
            models={"tiny": ModelSettings(path="tiny.gguf")}, pipeline=PipelineSettings(default_max_tokens=20)
        )
        self.claims = TurnClaims(ClaimStore(self.storage), NAMES, pool)
        self.stage = Stage(settings, pool, SessionHistory(self.storage, max_turns=10), self.claims)

    def claim(self, content: object) -> ClaimCheck:
        """Put an object, and give its claim."""
        encoded = content if isinstance(content, bytes) else msgspec.json.encode(content)
        claim = claim_for(encoded, NAMES, tenant="default", now_ms=0)
        self.storage.objects[claim.object] = encoded
        return claim

    async def member(self, claim: ClaimCheck, *, kind: str = "chat", unknown: Any = None, **fields: Any) -> Any:
        """What becomes of a claimed request."""
        request_type = ChatRequest if kind == "chat" else CompletionRequest
        request = request_type(model="tiny", claim=claim, **fields)
        given = Turn(envelope=envelope(session=fields.get("session")), request=request, unknown_fields=unknown or {})
        return await self.stage.member(given, "interactive")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def patient_pool(tiny_model: str) -> AsyncIterator[PromptPool]:
    """With the time for one job that there is outside of tests: what is large takes its time."""
    pool = PromptPool({"tiny": tiny_model}, num_processes=1)
    await pool.start()
    yield pool
    await pool.stop()


@pytest.fixture
def bench(patient_pool: PromptPool) -> Bench:
    return Bench(patient_pool)


MESSAGES = [{"role": "user", "content": "hi"}]


async def test_a_claimed_chat_is_answered_as_if_all_of_it_stood_in_the_record(bench: Bench) -> None:
    content = {"messages": MESSAGES, "temperature": 0.5, "metadata": {"pad": "x" * 100_000}, "tomorrow": [1]}
    member = await bench.member(bench.claim(content), max_tokens=5, stop="END")
    assert isinstance(member, Sequence)
    inline = ChatRequest(
        model="tiny", messages=[Message(role="user", content="hi")], temperature=0.5, max_tokens=5, stop="END"
    )
    assert member == await bench.stage.member(Turn(envelope=envelope(), request=inline), "interactive")


@pytest.mark.parametrize("prompt", ["once", [1, 2, 3]])
async def test_a_claimed_completion_may_be_text_or_ids(bench: Bench, prompt: object) -> None:
    member = await bench.member(bench.claim({"prompt": prompt}), kind="completion")
    assert isinstance(member, Sequence)
    assert len(member.prompt_token_ids) >= 3


async def test_a_turn_of_a_session_carries_the_messages_from_the_object(bench: Bench) -> None:
    member = await bench.member(bench.claim({"messages": MESSAGES}), session="s1")
    assert isinstance(member, Sequence)
    assert member.messages == [Message(role="user", content="hi")]


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        pytest.param(b"no JSON", "invalid_value", "claim", id="no JSON"),
        pytest.param(b"[1]", "invalid_value", "claim", id="no object"),
        pytest.param(b"\xff\xfe", "invalid_value", "claim", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "invalid_value", "claim", id="deep"),
        pytest.param({}, "invalid_value", "messages", id="no messages"),
        pytest.param({"messages": [{"role": "pope"}]}, "invalid_value", "messages[0].role", id="bad role"),
        pytest.param({"messages": MESSAGES, "session": "s9"}, "invalid_value", "session", id="session inside"),
        pytest.param({"messages": MESSAGES, "tenant": "acme"}, "invalid_value", "tenant", id="tenant inside"),
        pytest.param({"messages": MESSAGES, "seed": 1}, "invalid_value", "seed", id="both"),
        pytest.param({"messages": MESSAGES, "tools": [{"a": 1}]}, "unsupported", "tools", id="tools"),
        pytest.param(
            {"messages": [{"role": "user", "content": "x" * 20_000_000}]},
            "context_length_exceeded",
            "messages",
            id="20 MB",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": ""}] * 500_000}, "context_length_exceeded", "messages", id="many"
        ),
    ],
)
async def test_what_is_wrong_in_an_object_is_named_as_if_it_stood_in_the_record(
    bench: Bench, content: object, code: str, param: str
) -> None:
    member = await bench.member(bench.claim(content), seed=7)
    assert isinstance(member, Refusal), member
    assert (member.error.code, member.error.param) == (code, param)
    assert member.error.type == "invalid_request_error"


def asking_for(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def nested(levels: int) -> object:
    return {"items": nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param({"prompt": [2**70]}, "invalid_value", id="token id"),
        pytest.param({"prompt": "x", "response_format": asking_for({"minimum": 2**70})}, "invalid_value", id="number"),
        pytest.param({"prompt": "x", "response_format": asking_for(nested(300))}, "invalid_value", id="deep"),
        pytest.param(
            {"prompt": "x", "logit_bias": {str(n): 1 for n in range(100_000)}}, "request_too_large", id="many entries"
        ),
    ],
)
async def test_what_cannot_be_passed_on_ends_its_request_and_no_process(
    bench: Bench, patient_pool: PromptPool, content: object, code: str
) -> None:
    children = patient_pool.pids
    member = await bench.member(bench.claim(json.dumps(content).encode()), kind="completion")
    assert isinstance(member, Refusal)
    assert member.error.code == code
    assert patient_pool.pids == children


async def test_an_object_that_is_missing_ends_the_request(bench: Bench) -> None:
    claim = bench.claim({"messages": MESSAGES})
    del bench.storage.objects[claim.object]
    member = await bench.member(claim)
    assert (member.error.code, member.error.param) == ("claim_missing", "claim")


@pytest.mark.parametrize("damage", ["longer", "shorter", "flipped"])
async def test_an_object_that_is_damaged_is_not_used(bench: Bench, damage: str) -> None:
    claim = bench.claim({"messages": MESSAGES})
    content = bench.storage.objects[claim.object]
    damaged = {"longer": content + b" ", "shorter": content[:-1], "flipped": content.replace(b"hi", b"ho")}
    bench.storage.objects[claim.object] = damaged[damage]
    assert (await bench.member(claim)).error.code == "claim_damaged"


async def test_storage_that_is_away_is_waited_for(bench: Bench) -> None:
    claim = bench.claim({"messages": MESSAGES})
    bench.storage.outages = 2
    assert isinstance(await bench.member(claim), Sequence)
    assert bench.claims.num_waiting == 0


def long_sequence(**changes: Any) -> Sequence:
    """A sequence of a model with a long context."""
    sampling = {"max_tokens": 5, "seed": 1, **changes}
    return msgspec.convert(
        {
            "schema": "sequence/1",
            "envelope": msgspec.to_builtins(envelope()),
            "model": "m",
            "hashes": {"model": "", "tokenizer": "", "template": ""},
            "prompt_token_ids": list(range(70_000, 270_000)),
            "messages": [{"role": "user", "content": "é" * 10_000}],
            "sampling": sampling,
        },
        Sequence,
    )


async def test_a_sequence_that_fits_no_record_travels_by_claim(bench: Bench) -> None:
    bench.storage.outages = 1
    given = long_sequence()
    sent = await bench.claims.fitting(given)
    assert len(BATCH.encode(Batch(members=[sent]))) < 2_000
    assert sent.claim is not None
    assert SEQUENCE_CONTENTS.joined(sent, bench.storage.objects[sent.claim.object]) == given


@pytest.mark.parametrize("stop", ["x" * MAX_INLINE_BYTES, "\0" * (MAX_INLINE_BYTES // 5)], ids=["plain", "escaped"])
async def test_what_would_not_fit_the_result_is_refused_in_words(bench: Bench, stop: str) -> None:
    member = await bench.member(bench.claim({"messages": MESSAGES, "stop": stop}))
    assert isinstance(member, Refusal)
    assert member.error.code == "request_too_large"
    assert len(member.error.message) < 500
