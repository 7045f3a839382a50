"""Why nothing is heard of a request whose stream is read again: it may not be on record at all.

Asked only when a reader has waited in vain: it reads what is kept of the request's partition.
"""

import asyncio
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any

import msgspec

from headrace.client.ids import CLOCK_MARGIN_MS, uuid7_ms
from headrace.client.scout import Scout

# Who waited already should not wait much longer for the reason.
_SEARCH_WITHIN_S = 10.0


class _Body(msgspec.Struct):
    id: Any = None


_BODY = msgspec.json.Decoder(_Body)


async def why_absent(
    scout: Scout, partition: int, request_id: str, *, session: str | None, since: datetime | None
) -> str | None:
    """The sentence for people; None if the request is on record, or if that could not be found out in time."""
    time_ms = int(since.timestamp() * 1000) if since else uuid7_ms(request_id)
    start_ms = None if time_ms is None else time_ms - CLOCK_MARGIN_MS
    with suppress(TimeoutError):
        async with asyncio.timeout(_SEARCH_WITHIN_S):
            return await _search(scout, partition, request_id, session, start_ms)
    return None


async def _search(
    scout: Scout, partition: int, request_id: str, session: str | None, start_ms: int | None
) -> str | None:
    has_key, key = False, (session or request_id).encode()
    async with aclosing(scout.requests(partition, start_ms)) as records:
        async for record in records:
            if record.key != key:
                continue
            has_key = True
            place = f"{record.topic}-{record.partition}-{record.offset}"
            if request_id in (_id_in(record.value), place):
                return None
    if session is None:
        return f"no request with the id {request_id!r} is on record; one of a session is found with its session only"
    if not has_key:
        return f"the session {session!r} is not known: no request of it is on record"
    return f"session {session!r} has no request {request_id!r} on record"


def _id_in(value: bytes | None) -> Any:
    """The id in a body; None where it has none, or is no JSON object."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _BODY.decode(value or b"").id
    return None
