"""One record of `requests` as it arrived, and who it says it is: readable also where the rest of it is not."""

import re
from typing import Any, NamedTuple

import msgspec

from runtime.headers import REROUTED_FROM
from runtime.tracing import Headers
from schemas.envelope import DEFAULT_TENANT, Identifier
from schemas.names import Lane, lane_of

# What frames a header in a record: the lengths of its name and value (KIP-98, as varints).
_MAX_HEADER_FRAME = 10


class Arrival(NamedTuple):
    """A record of `requests` with all that admission may look at. `timestamp_ms` is broker time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    traceparent: str

    @property
    def position(self) -> str:
        """Where it is: "topic-partition-offset"."""
        return f"{self.topic}-{self.partition}-{self.offset}"

    @property
    def lane(self) -> Lane:
        """The lane that the request stays in."""
        return lane_of(self.topic)

    @property
    def rerouted_from(self) -> str | None:
        """Where it stood before the gate moved it, if it did."""
        for name, value in self.headers:
            if name == REROUTED_FROM:
                return (value or b"").decode("utf-8", "replace")
        return None

    @property
    def num_bytes(self) -> int:
        """Its size, rather more than less: there may be thousands of headers."""
        in_headers = sum(len(name.encode()) + len(value or b"") + _MAX_HEADER_FRAME for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + in_headers


class Identity(NamedTuple):
    """Who a request is. `key` is the canonical key; None where it cannot be known from what the record holds."""

    request_id: str
    key: str | None
    tenant: str = DEFAULT_TENANT
    session: str | None = None
    model: str = ""
    kind: str = "chat"


class _Body(msgspec.Struct):
    """The fields of a body that tell who it is, of any type: whether they are right is asked one by one."""

    id: Any = None
    session: Any = None
    tenant: Any = DEFAULT_TENANT
    model: Any = ""
    kind: Any = None
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_BODY = msgspec.json.Decoder(_Body)


def identify(arrival: Arrival) -> Identity:
    """Read who a record is from, as far as that can be read. Never raises: any bytes have an identity."""
    own_id = _own_id(arrival)
    body = _read(arrival.value)
    if body is None:
        return Identity(own_id, key=None)
    request_id = own_id if body.id is None else as_identifier(body.id)
    session = None if body.session is None else as_identifier(body.session)
    is_keyed = request_id is not None and (body.session is None or session is not None)
    return Identity(
        request_id=request_id or own_id,
        key=(session or request_id) if is_keyed else None,
        tenant=as_identifier(body.tenant) or DEFAULT_TENANT,
        session=session,
        model=body.model if isinstance(body.model, str) else "",
        kind=_kind(body),
    )


def _own_id(arrival: Arrival) -> str:
    """The id of a request without one: where it was first written."""
    origin = arrival.rerouted_from
    # Anyone may write the header: only what the gate itself could have written names a request.
    if origin is not None and re.fullmatch(rf"{re.escape(arrival.topic)}-[0-9]{{1,10}}-[0-9]{{1,19}}", origin):
        return origin
    return arrival.position


def _read(value: bytes | None) -> _Body | None:
    try:
        return _BODY.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # `decode_request` says what is wrong with it; here it only has no name.
        return None


def as_identifier(value: object) -> str | None:
    """The value, if it may be an id."""
    try:
        return msgspec.convert(value, type=Identifier)
    except msgspec.ValidationError:
        return None


def _kind(body: _Body) -> str:
    if isinstance(body.kind, str):
        return body.kind
    if body.prompt is not msgspec.UNSET:
        return "completion"
    return "embedding" if body.input is not msgspec.UNSET else "chat"
