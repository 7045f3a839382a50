"""What a request's id tells of the time at which it was made."""

import uuid

# Ids carry the time of the machine that made them, records that of the broker: their clocks may differ by this much.
CLOCK_MARGIN_MS = 60_000
_UUID7 = 7


def uuid7_ms(request_id: str) -> int | None:
    """The time in a UUIDv7, in milliseconds since the epoch (RFC 9562, section 5.7); None if it is no UUIDv7."""
    try:
        value = uuid.UUID(request_id)
    except ValueError:
        return None
    return value.int >> 80 if value.version == _UUID7 else None
