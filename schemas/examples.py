"""One record of each kind as it really travels: shown in the published documents and decoded by the tests.

They tell one story: request `0199c0de-…` is the second turn of session `alice`, answered by a worker that owns
`headrace.batches.smollm2-135m-instruct`, partition 3, under epoch 512.
"""

import msgspec

from schemas.claims import ClaimCheck
from schemas.control import Cancel, DeadLetter, ModelAnnouncement
from schemas.envelope import ModelHashes
from schemas.errors import MalformedRecord
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Message
from schemas.results import DuplicateOf, Result, ResultChoice, Timings
from schemas.sampling import SamplingParams
from schemas.sessions import ParkedTurn, SessionState, SessionTurn, session_turn_key
from schemas.settings import DEFAULT_MODEL
from schemas.structured import JsonSchemaFormat, NamedSchema, StructuredOutputs
from schemas.tokens import (
    Admitted,
    ChunkChoice,
    ChunkMessage,
    Ended,
    Released,
    Requeued,
    Takeover,
    TokenDelta,
    Usage,
)

_REQUEST = "0199c0de-7a3e-7d41-9f52-3c1a5be80a17"
_EARLIER = "0199c0de-1b22-7e08-8a4d-90fe12c3d4b5"
_TENANT, _SESSION = "default", "alice"
_SOURCE, _EPOCH = f"headrace.batches.{DEFAULT_MODEL}-3", 512
_CREATED_S = 1_767_225_600
_HASHES = ModelHashes(model="4d0c7be1", tokenizer="a1f29c33", template="77e0b5d8")
_QUESTION = Message(role="user", content="And how far is the Moon?")
_ANSWER = Message(role="assistant", content="About 384,400 km.")
_BASE_IDS, _PROMPT_IDS, _ANSWER_IDS = [1, 4093, 198], [1, 4093, 198, 2683, 638, 1869], [7006, 216, 40, 2]
_PARENT = f"headrace/{session_turn_key(_TENANT, _SESSION, 1, _EARLIER)}"
_STATE = f"headrace/{session_turn_key(_TENANT, _SESSION, 2, _REQUEST)}"
_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_USAGE = Usage(prompt_tokens=6, completion_tokens=4, total_tokens=10, cached_tokens=3)

CHAT = ChatRequest(id=_REQUEST, session=_SESSION, model=DEFAULT_MODEL, messages=[_QUESTION], max_tokens=64, ttl_s=120.0)
COMPLETION = CompletionRequest(model=DEFAULT_MODEL, prompt="Once upon a time", priority_class="bulk", seed=7, stop="\n")
STRUCTURED = ChatRequest(
    model=DEFAULT_MODEL,
    messages=[Message(role="user", content="Who wrote Emma, and when? Answer as JSON.")],
    response_format=JsonSchemaFormat(
        NamedSchema(
            name="book",
            schema={
                "type": "object",
                "properties": {"author": {"type": "string", "maxLength": 60}, "year": {"type": "integer"}},
                "required": ["author", "year"],
                "additionalProperties": False,
            },
        )
    ),
)
CHOSEN = CompletionRequest(
    model=DEFAULT_MODEL, prompt="The film was", structured_outputs=StructuredOutputs(choice=["good", "bad"])
)
_CLAIM = ClaimCheck(
    object=f"headrace/claims/{_TENANT}/2026-01-01/{'9f86d081884c7d65' * 4}",
    sha256="9f86d081884c7d65" * 4,
    num_bytes=1_310_720,
)
CLAIMED_CHAT = ChatRequest(id=_REQUEST, model=DEFAULT_MODEL, max_tokens=64, claim=_CLAIM)
EMBEDDING = EmbeddingRequest(model=DEFAULT_MODEL, input=["one text", "another"])

DELTA = TokenDelta(
    id=f"chatcmpl-{_REQUEST}",
    object="chat.completion.chunk",
    created=_CREATED_S,
    model=DEFAULT_MODEL,
    choices=[ChunkChoice(index=0, delta=ChunkMessage(role="assistant", content="About"))],
    request_id=_REQUEST,
    index=0,
    epoch=_EPOCH,
    source=_SOURCE,
    token_ids=_ANSWER_IDS[:1],
)
LAST_DELTA = msgspec.structs.replace(
    DELTA,
    choices=[ChunkChoice(index=0, delta=ChunkMessage(content=" 384,400 km."), finish_reason="stop")],
    index=1,
    token_ids=_ANSWER_IDS[1:],
    usage=_USAGE,
)
TAKEOVER = Takeover(source=_SOURCE, worker="worker-0", committed_offset=40, previous_epoch=17, hashes=_HASHES)
ADMITTED = Admitted(request_id=_REQUEST, source=_SOURCE, epoch=_EPOCH)
ENDED = Ended(request_id=_REQUEST, tenant=_TENANT, source=_SOURCE, epoch=_EPOCH, status="completed")
RELEASED = Released(request_id=_REQUEST, source=_SOURCE, epoch=_EPOCH)
REQUEUED = Requeued(request_id=_REQUEST, source=_SOURCE, epoch=_EPOCH, count=1)

COMPLETED = Result(
    id=f"chatcmpl-{_REQUEST}",
    object="chat.completion",
    created=_CREATED_S,
    model=DEFAULT_MODEL,
    request_id=_REQUEST,
    status="completed",
    choices=[ResultChoice(index=0, finish_reason="stop", token_ids=_ANSWER_IDS, message=_ANSWER)],
    usage=_USAGE,
    session=_SESSION,
    turn=2,
    parent=_PARENT,
    messages=[_QUESTION],
    prompt_token_ids=_PROMPT_IDS,
    num_base_tokens=len(_BASE_IDS),
    sampling=SamplingParams(max_tokens=64, seed=8_214_565_720_323_784_703),
    hashes=_HASHES,
    source=_SOURCE,
    epoch=_EPOCH,
    traceparent=_TRACEPARENT,
    timings=Timings(queue_ms=2.1, ttft_ms=61.5, total_ms=148.0, tokens_per_s=34.7),
)
CLAIMED = msgspec.structs.replace(COMPLETED, choices=[], messages=[], prompt_token_ids=[], claim=_CLAIM)
FAILED = Result(
    id=f"chatcmpl-{_EARLIER}",
    object="chat.completion",
    created=_CREATED_S,
    model="",
    request_id=_EARLIER,
    status="failed",
    error=MalformedRecord("a request is a JSON object, this is a JSON array").body,
)
DUPLICATE = DuplicateOf(request_id=_REQUEST, result_offset=88)

STATE = SessionState(
    session=_SESSION, tenant=_TENANT, turn=2, object=_STATE, last_request=_REQUEST, outcome="completed"
)
PARKED = ParkedTurn(
    session=_SESSION, tenant=_TENANT, request_id=_REQUEST, position=41, lane="interactive", turn=b"\x83"
)
TURN_OBJECT = SessionTurn(
    tenant=_TENANT,
    session=_SESSION,
    turn=2,
    request_id=_REQUEST,
    model=DEFAULT_MODEL,
    hashes=_HASHES,
    messages=[_QUESTION, _ANSWER],
    token_ids=_PROMPT_IDS[len(_BASE_IDS) :] + _ANSWER_IDS,
    parent=_PARENT,
)

CANCEL = Cancel(request_id=_REQUEST, reason="the user closed the page")
MODEL = ModelAnnouncement(
    model=DEFAULT_MODEL,
    hashes=_HASHES,
    context_length=8192,
    worker="worker-0",
    max_running=64,
    num_kv_tokens=45_056,
    dtype="bfloat16",
    device="cpu",
)
DEAD_LETTER = DeadLetter(
    topic="headrace.requests",
    partition=3,
    offset=39,
    timestamp_ms=_CREATED_S * 1000,
    stage="gate",
    error=MalformedRecord("a request is a JSON object, this is a JSON array").body,
    request_id="headrace.requests-3-39",
    key=b"alice",
    value=b"[1, 2]",
    headers=[("traceparent", _TRACEPARENT.encode())],
)

ALL: tuple[msgspec.Struct, ...] = (
    CHAT, STRUCTURED, CLAIMED_CHAT, COMPLETION, CHOSEN, EMBEDDING,
    DELTA, LAST_DELTA, TAKEOVER, ADMITTED, ENDED, RELEASED, REQUEUED,
    COMPLETED, CLAIMED, FAILED, DUPLICATE,
    STATE, PARKED, TURN_OBJECT,
    CANCEL, MODEL, DEAD_LETTER,
)  # fmt: skip


def examples_of(kind: type[msgspec.Struct]) -> list[msgspec.Struct]:
    """The examples of one kind of record; there is at least one of each that is published."""
    return [record for record in ALL if type(record) is kind]
