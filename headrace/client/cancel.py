"""A cancel as it goes to the broker, checked here so that a mistake is an exception and no record that means nobody."""

from typing import NamedTuple

import msgspec

from schemas.codec import CONTROL
from schemas.control import Cancel
from schemas.errors import InvalidValue


class OutgoingCancel(NamedTuple):
    """A checked cancel, beside the records of the request that it means."""

    key: bytes
    value: bytes


def encode_cancel(request_id: str, *, tenant: str, session: str | None, reason: str | None) -> OutgoingCancel:
    """A cancel.

    Raises:
        InvalidValue: one of them can be no request's.
    """
    fields = {"request_id": request_id, "tenant": tenant, "session": session, "reason": reason}
    try:
        cancel = msgspec.convert(fields, type=Cancel)
        return OutgoingCancel(cancel.key.encode(), CONTROL.encode(cancel))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidValue(f"this cannot be cancelled: {error}") from error
