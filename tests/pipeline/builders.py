"""Turns and what belongs to them, with defaults for what a test is not about."""

from typing import Any

from pipeline.context import ModelFacts
from schemas.codec import SESSION_TURN
from schemas.envelope import Envelope, ModelHashes
from schemas.requests import ChatRequest, CompletionRequest, Message
from schemas.sessions import SessionTurn
from schemas.settings import DEFAULT_MODEL
from schemas.turns import BaseTurn, Turn

HASHES = ModelHashes(model="m" * 64, tokenizer="t" * 64, template="c" * 64)
FACTS = ModelFacts(context_length=100, vocab_size=1000, hashes=HASHES)
# A real broker stamps records with the time of today.
NEVER = 4_102_444_800_000
TRACEPARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def envelope(request_id: str = "r-1", **changes: Any) -> Envelope:
    session = changes.get("session")
    given = {"key": session or request_id, "accepted_at_ms": 1_000, "deadline_ms": NEVER, "traceparent": TRACEPARENT}
    return Envelope(request_id=request_id, **{**given, **changes})


def chat(content: str = "hello", **fields: Any) -> ChatRequest:
    return ChatRequest(**{"model": DEFAULT_MODEL, "messages": [Message(role="user", content=content)], **fields})


def completion(prompt: str | list[int] = "hello", **fields: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": DEFAULT_MODEL, "prompt": prompt, **fields})


def turn(
    request: ChatRequest | CompletionRequest | None = None,
    request_id: str = "r-1",
    *,
    base: BaseTurn | None = None,
    **changes: Any,
) -> Turn:
    return Turn(envelope=envelope(request_id, **changes), request=request or chat(), base=base)


def session_turn(number: int, token_ids: list[int], *, parent: str | None = None, **changes: Any) -> bytes:
    given = {
        "tenant": "default",
        "session": "s-1",
        "request_id": f"r-{number}",
        "model": DEFAULT_MODEL,
        "hashes": HASHES,
    }
    return SESSION_TURN.encode(
        SessionTurn(**{**given, "turn": number, "messages": [], "token_ids": token_ids, "parent": parent, **changes})
    )
