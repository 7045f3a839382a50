"""Builds what the gate's tests need: records as they arrive, turns, results of a worker that does not exist."""

import json
from typing import Any

from consumers.gate.admission import AdmissionRules, Forward, admit
from consumers.gate.arrival import Arrival
from runtime.kafka import partition_for
from schemas.envelope import ModelHashes, Status
from schemas.errors import ErrorBody
from schemas.requests import Message
from schemas.results import Result, ResultChoice
from schemas.turns import Turn

NUM_PARTITIONS = 6
NOW_MS = 1_700_000_000_000
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUESTS = "headrace.requests"
RULES = AdmissionRules(num_partitions=NUM_PARTITIONS, default_ttl_s=3600.0, max_age_s=86_400.0)
HASHES = ModelHashes(model="m1", tokenizer="t1", template="c1")


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "smollm2", "messages": [{"role": "user", "content": text}], **fields}


def encoded(body: object) -> bytes:
    """A body as a client of any language would send it."""
    return json.dumps(body).encode()


def arrival(
    value: bytes | None,
    *,
    key: bytes | None = None,
    partition: int | None = None,
    offset: int = 7,
    topic: str = REQUESTS,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    timestamp_ms: int = NOW_MS,
) -> Arrival:
    """A record; without `partition` it stands where its key belongs."""
    if partition is None:
        partition = partition_for(key or b"", NUM_PARTITIONS)
    return Arrival(topic, partition, offset, timestamp_ms, key, value, headers, TRACEPARENT)


def forwarded(request_id: str, *, session: str | None = "s1", text: str = "hello", **fields: Any) -> Forward:
    """What admission makes of a valid request."""
    key = (session or request_id).encode()
    body = chat(text, id=request_id, **({"session": session} if session else {}), **fields)
    decision = admit(arrival(encoded(body), key=key), RULES, now_ms=NOW_MS)
    assert isinstance(decision, Forward)
    return decision


def result_of(turn: Turn, *, status: Status = "completed", answer: tuple[int, ...] = (7, 8), base: int = 0) -> Result:
    """A worker's terminal record of a turn: prompt ids 0..base+3, of which `base` came from earlier turns."""
    envelope = turn.envelope
    is_completed = status == "completed"
    message = Message(role="assistant", content=f"answer to {envelope.request_id}")
    choice = ResultChoice(index=0, finish_reason="stop", token_ids=list(answer), message=message)
    return Result(
        id=f"chatcmpl-{envelope.request_id}",
        object="chat.completion",
        created=NOW_MS // 1000,
        model=turn.request.model,
        request_id=envelope.request_id,
        status=status,
        choices=[choice] if is_completed else [],
        error=None if is_completed else ErrorBody(message="it broke", type="server_error", code="engine_fault"),
        tenant=envelope.tenant,
        session=envelope.session,
        turn=envelope.turn,
        parent=turn.base.object if turn.base else None,
        messages=list(getattr(turn.request, "messages", [])),
        prompt_token_ids=list(range(base + 4)),
        num_base_tokens=base,
        hashes=HASHES,
    )
