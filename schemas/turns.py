"""What the gate puts on `turns`: an admitted request with the turn of its session that it follows."""

from typing import Any

import msgspec

from schemas.envelope import Envelope, Natural, ObjectKey
from schemas.requests import Request


class BaseTurn(msgspec.Struct, kw_only=True, frozen=True):
    """The newest finished turn of a session: its number and the key of its immutable object."""

    turn: Natural
    object: ObjectKey


class Turn(msgspec.Struct, kw_only=True, tag_field="schema", tag="turn/1", omit_defaults=True):
    """One admitted request. `base` is set where its session has history.

    `unknown_fields` are fields of the client's body that this version does not know: kept, not guessed at.
    """

    envelope: Envelope
    request: Request
    base: BaseTurn | None = None
    unknown_fields: dict[str, Any] = {}
