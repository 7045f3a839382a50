"""The state of a session: a small compacted record on `sessions` that points to immutable objects, one a turn."""

import msgspec

from schemas.envelope import ModelHashes, Natural, ObjectKey, Status
from schemas.requests import Message


class SessionState(msgspec.Struct, kw_only=True, frozen=True, tag_field="schema", tag="session/1", omit_defaults=True):
    """Where a session stands. `turn` counts successful turns; `object` is the newest one's key.

    `running` is the request whose result is awaited; no other turn of the session is forwarded meanwhile.
    """

    session: str
    tenant: str
    turn: Natural = 0
    object: ObjectKey | None = None
    running: str | None = None
    last_request: str | None = None
    outcome: Status | None = None


class ParkedTurn(msgspec.Struct, kw_only=True, frozen=True, tag_field="schema", tag="parked/1", omit_defaults=True):
    """A turn that waits for its predecessor, kept as the encoded `Turn` record without its base."""

    session: str
    tenant: str
    request_id: str
    position: Natural
    lane: str
    turn: bytes


SessionRecord = SessionState | ParkedTurn


class SessionTurn(msgspec.Struct, kw_only=True, tag_field="schema", tag="session-turn/1", omit_defaults=True):
    """One turn of a session as an immutable object: this turn only, and its parent's key.

    `token_ids` are the ids that this turn added to the context: its part of the prompt, then what was sampled. Ids are
    stored, never derived again: rendering text anew tokenises differently and loses the KV.
    """

    tenant: str
    session: str
    turn: int
    request_id: str
    model: str
    hashes: ModelHashes
    messages: list[Message]
    token_ids: list[int]
    parent: str | None = None


def session_turn_key(tenant: str, session: str, turn: int, request_id: str) -> str:
    """Name of the object of one turn, below the bucket prefix. Numbers are padded so that listings sort."""
    return f"sessions/{tenant}/{session}/{turn:06d}-{request_id}.json"


def session_record_key(tenant: str, session: str, position: int | None = None) -> bytes:
    """Key on `sessions`: of the session's state, or with `position` of one of its parked turns.

    The tenant is part of it, since two tenants may use one session id. The partition still follows the session id
    alone, so that the state lies beside the session's requests.
    """
    state = f"{tenant}/{session}"
    return (state if position is None else f"{state}#{position}").encode()
