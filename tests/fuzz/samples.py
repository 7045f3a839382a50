"""Valid bytes of every kind that a role reads: the ground on which damage is done."""

from typing import Any

import msgspec

from schemas import codec, examples
from schemas.batches import Batch, Refusal, Sequence
from schemas.codec import BATCH, SESSION, TURN, Codec
from schemas.envelope import Envelope, ModelHashes
from schemas.errors import UnknownModel
from schemas.json_schema import PUBLISHED
from schemas.requests import ChatRequest, Message, TextPart
from schemas.sampling import SamplingParams
from schemas.sessions import ParkedTurn
from schemas.turns import BaseTurn, Turn

TENANT, SESSION_ID, MODEL = "default", "s-1", "tiny"
HASHES = ModelHashes(model="m" * 64, tokenizer="t" * 64, template="c" * 64)
TRACEPARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
NOW_MS = 1_790_000_000_000

ENVELOPE = Envelope(
    request_id="r-1", key="r-1", accepted_at_ms=NOW_MS, deadline_ms=NOW_MS + 60_000, traceparent=TRACEPARENT
)
IN_SESSION = msgspec.structs.replace(ENVELOPE, request_id="r-2", key=SESSION_ID, session=SESSION_ID, turn=2)

CHAT = ChatRequest(
    model=MODEL,
    messages=[Message(role="system", content="Be kind."), Message(role="user", content=[TextPart(text="hello")])],
    max_tokens=8,
    temperature=0.7,
    logit_bias={"5": -1.0},
    stop=["\n"],
    stop_token_ids=[3],
    metadata={"a": [1, {"b": None}]},
)

TURNS = [
    TURN.encode(Turn(envelope=ENVELOPE, request=CHAT, unknown_fields={"x": [1.5, "y"]})),
    TURN.encode(Turn(envelope=ENVELOPE, request=msgspec.structs.replace(examples.COMPLETION, model=MODEL))),
    TURN.encode(Turn(envelope=ENVELOPE, request=examples.EMBEDDING)),
    TURN.encode(Turn(envelope=IN_SESSION, request=CHAT, base=BaseTurn(turn=1, object="p/sessions/default/s-1/1.json"))),
]

SEQUENCE = Sequence(
    envelope=ENVELOPE,
    model=MODEL,
    hashes=HASHES,
    prompt_token_ids=[10, 20, 30],
    sampling=SamplingParams(max_tokens=8, seed=7, logit_bias={5: 1.5}, stop=["ab"], num_choices=2, top_logprobs=2),
)
REFUSAL = Refusal(
    envelope=IN_SESSION, model="x", stage="pipeline", error=UnknownModel("nobody serves 'x'", param="model").body
)
BATCHES = [
    BATCH.encode(Batch(members=[SEQUENCE])),
    BATCH.encode(Batch(members=[REFUSAL, SEQUENCE])),
    BATCH.encode(
        Batch(
            members=[
                msgspec.structs.replace(
                    SEQUENCE, envelope=IN_SESSION, messages=list(CHAT.messages), parent="p/1.json", num_base_tokens=2
                )
            ]
        )
    ),
]

PARKED = SESSION.encode(
    ParkedTurn(session=SESSION_ID, tenant=TENANT, request_id="r-2", position=0, lane="interactive", turn=TURNS[3])
)

_BY_FILE = {
    records.file: [
        _encode(example)
        for _encode in [msgspec.json.encode]
        for kind in records.kinds
        for example in examples.examples_of(kind)
    ]
    for records in PUBLISHED
}
REQUESTS = [*_BY_FILE["requests.json"], msgspec.json.encode(CHAT)]
TOKENS = _BY_FILE["tokens.json"]
RESULTS = _BY_FILE["results.json"]
SESSIONS = [*_BY_FILE["sessions.json"], PARKED]
CONTROL = _BY_FILE["control.json"]
MODELS = _BY_FILE["models.json"]
DEAD_LETTERS = _BY_FILE["dead-letters.json"]
SESSION_TURNS = _BY_FILE["session-turn.json"]

# Each codec with samples of what it reads: a codec that is missing here is found by a test.
JSON_CODECS: dict[str, tuple[Codec[Any], list[bytes]]] = {
    "tokens": (codec.JOURNAL, TOKENS),
    "results": (codec.RESULT, RESULTS),
    "sessions": (codec.SESSION, SESSIONS),
    "session objects": (codec.SESSION_TURN, SESSION_TURNS),
    "control": (codec.CONTROL, CONTROL),
    "models": (codec.MODEL, MODELS),
    "dead letters": (codec.DEAD_LETTER, DEAD_LETTERS),
}
MSGPACK_CODECS: dict[str, tuple[Codec[Any], list[bytes]]] = {
    "turns": (codec.TURN, TURNS),
    "batches": (codec.BATCH, BATCHES),
}
