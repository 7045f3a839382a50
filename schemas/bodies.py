"""The body of a request whose heavy fields lie in the object of a claim: taken apart, and put together again."""

from typing import Any, NamedTuple

import msgspec

from schemas.claims import ClaimCheck
from schemas.codec import DecodedRequest, decode_body
from schemas.errors import InvalidValue

# What the gate goes by, which reads records only: who asks, in which order, until when. It is never in an object.
INLINE_FIELDS = frozenset(
    {
        "schema", "claim", "kind", "id", "session", "tenant", "model", "class", "priority", "ttl_s", "deadline_ms",
        "stream",
    }
)  # fmt: skip

# Smaller fields stay where people see them, unless there are too many of them.
_MAX_LIGHT_BYTES = 4096

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SplitBody(NamedTuple):
    """A body in two: the members that stay, and the JSON object of those that move."""

    inline: dict[str, msgspec.Raw]
    content: bytes

    def claimed(self, claim: ClaimCheck, *, kind: str) -> bytes:
        """The record that refers to the object."""
        return msgspec.json.encode({**self.inline, "kind": kind, "claim": claim})


def split_body(value: bytes, *, max_inline_bytes: int) -> SplitBody:
    """Take the heavy fields out of the JSON of a request, so that what stays is small if it can be.

    Raises:
        msgspec.DecodeError: it is no JSON object.
    """
    members = _MEMBERS.decode(value)
    movable = {name: bytes(member) for name, member in members.items() if name not in INLINE_FIELDS}
    heavy = {name for name, member in movable.items() if len(member) > _MAX_LIGHT_BYTES}
    if sum(len(name) + len(member) for name, member in movable.items() if name not in heavy) > max_inline_bytes // 2:
        heavy = set(movable)
    content = msgspec.json.encode({name: msgspec.Raw(movable[name]) for name in movable if name in heavy})
    return SplitBody({name: member for name, member in members.items() if name not in heavy}, content)


def join_body(inline: dict[str, Any], content: bytes) -> DecodedRequest:
    """The whole request: the members of its record and those of its object.

    Raises:
        InvalidValue: the object is none, has what must be in the record or is there as well, or the request that comes
            out is none; `param` names the field.
    """
    try:
        moved = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(f"the object of the claim is no JSON object: {error}", param="claim") from error
    if misplaced := sorted(INLINE_FIELDS & moved.keys()):
        raise InvalidValue(f"`{misplaced[0]}` must be in the record and not in its object", param=misplaced[0])
    if doubled := sorted(inline.keys() & moved.keys()):
        raise InvalidValue(f"`{doubled[0]}` is both in the record and in its object", param=doubled[0])
    return decode_body({name: value for name, value in (inline | moved).items() if name != "claim"})
