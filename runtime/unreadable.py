"""Who a record was about that cannot be decoded: its key and headers name the request, which must end all the same.

Only a fault of our own or another version's writer makes such a record; anybody may write one that looks like it.
"""

import msgspec

from runtime.tracing import Headers, traceparent_of
from schemas.envelope import DEFAULT_TENANT, Envelope
from schemas.names import Lane

_REQUEST = "ce_id"
_TENANT = "tenant"


def envelope_of_unreadable(
    *, key: bytes | None, headers: Headers, timestamp_ms: int, max_age_s: float, lane: Lane
) -> Envelope | None:
    """The envelope of a record of the request's way, from its key and headers; None if they name no request.

    The key is the session id where it is not the request id (the rule of canonical keys). `timestamp_ms` is broker
    time, `max_age_s` how long a request may live at most.
    """
    request_id, canonical = _text(_last(headers, _REQUEST)), _text(key)
    if request_id is None or canonical is None:
        return None
    fields = {
        "request_id": request_id,
        "key": canonical,
        "accepted_at_ms": timestamp_ms,
        "deadline_ms": timestamp_ms + int(max_age_s * 1000),
        "traceparent": traceparent_of(headers),
        "tenant": _text(_last(headers, _TENANT)) or DEFAULT_TENANT,
        "session": None if canonical == request_id else canonical,
        "class": lane,
    }
    try:
        return msgspec.convert(fields, type=Envelope)
    except msgspec.ValidationError:
        return None


def _last(headers: Headers, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers) if name == wanted), None)


def _text(value: bytes | None) -> str | None:
    try:
        return value.decode() if value is not None else None
    except UnicodeDecodeError:
        return None
