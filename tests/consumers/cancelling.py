"""Cancels as a client of any kind may write them."""

from typing import Any, NamedTuple

from schemas.codec import CONTROL
from schemas.control import Cancel


class Written(NamedTuple):
    """Key and value of a record on `control`."""

    key: bytes
    value: bytes


def written(request_id: str, **fields: Any) -> Written:
    """A cancel as our own client writes it; `fields` are its tenant, session and reason."""
    cancel = Cancel(request_id=request_id, **fields)
    return Written(cancel.key.encode(), CONTROL.encode(cancel))


# What is no cancel, and must stop nobody.
GARBAGE: list[bytes | None] = [
    None,
    b"",
    b"\xff\xfe{",
    b"[]",
    b"null",
    b'{"schema": "cancel/1"}',
    b'{"schema": "cancel/1", "request_id": 7}',
    b'{"schema": "cancel/1", "request_id": "r", "tenant": "not a tenant"}',
    b'{"schema": "approve/1", "request_id": "r"}',
    b"[" * 100_000,
]
