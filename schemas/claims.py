"""Claim checks: what is too large for a record lies in object storage, and the record carries where, and its hash.

The record stays readable: only its heavy fields move, into one JSON object whose members are these fields. The object's
key follows from its content, so that putting it again, after a crash, is harmless.
"""

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import msgspec

from schemas.names import Names

# A parked turn is base64 inside JSON, four bytes for three, and must still fit Kafka's 1 MiB.
MAX_INLINE_BYTES = 512 * 1024
# Of a request: read whole into memory, several times on its way to a child process. (A result is what it is.)
MAX_CLAIMED_BYTES = 32 << 20

_FOLDER = "claims"
# Clocks of clients are not the broker's, and an object may be put before midnight and asked for after it.
_DAY_MARGIN = timedelta(days=1)
_MS_PER_S = 1000
_DAY_FOLDER = re.compile(r"[^/]+/(?P<day>\d{4}-\d{2}-\d{2})/")
_NAME = re.compile(r"[0-9a-f]{64}")


class ClaimCheck(msgspec.Struct, kw_only=True, frozen=True):
    """Where the heavy fields of a record are: the full key in the bucket, the hash in hex, the size.

    Readers verify size and hash before they use what they read.
    """

    object: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    num_bytes: Annotated[int, msgspec.Meta(ge=2)]


def claim_for(content: bytes, names: Names, *, tenant: str, now_ms: float) -> ClaimCheck:
    """The claim check of a content that is about to be put; its day decides how long it is kept."""
    sha256 = hashlib.sha256(content).hexdigest()
    key = _key(names, tenant, day_of(now_ms), sha256)
    return ClaimCheck(object=key, sha256=sha256, num_bytes=len(content))


def fits(claim: ClaimCheck, content: bytes) -> bool:
    """Whether this is what the claim is about."""
    return len(content) == claim.num_bytes and hashlib.sha256(content).hexdigest() == claim.sha256


def keys_of(claim: ClaimCheck, names: Names, *, tenant: str, accepted_at_ms: float) -> list[str]:
    """The keys that a claim in a request of this tenant may have, for one that was accepted then.

    No other is followed: a request can neither read what is another tenant's nor be kept for another time than others.
    """
    today = day_of(accepted_at_ms)
    days = (today, today - _DAY_MARGIN, today + _DAY_MARGIN)
    return [_key(names, tenant, day, claim.sha256) for day in days]


def collectable(folders: Iterable[str], names: Names, *, kept_ms: float, now_ms: float) -> list[str]:
    """Those of the folders `<claims_prefix><tenant>/<day>/` to whose objects no kept record can refer any more.

    `kept_ms` is the longest time in which a record may be read that was written on the day of its object.
    """
    prefix, found = claims_prefix(names), []
    for folder in folders:
        named = _DAY_FOLDER.fullmatch(folder.removeprefix(prefix)) if folder.startswith(prefix) else None
        day = named and _parsed(named["day"])
        if day and _last_written_ms(day) + kept_ms <= now_ms:
            found.append(folder)
    return found


def is_claimed(key: str) -> bool:
    """Whether an object in such a folder has the name of a claim's: others are left alone."""
    return _NAME.fullmatch(key.rpartition("/")[2]) is not None


def claims_prefix(names: Names) -> str:
    """What the keys of all claimed objects begin with."""
    return names.object_key(f"{_FOLDER}/")


def day_of(time_ms: float) -> date:
    """The day (UTC) of a time in milliseconds since the epoch."""
    return datetime.fromtimestamp(time_ms / _MS_PER_S, UTC).date()


def _key(names: Names, tenant: str, day: date, sha256: str) -> str:
    return names.object_key(f"{_FOLDER}/{tenant}/{day.isoformat()}/{sha256}")


def _parsed(day: str) -> date | None:
    try:
        return date.fromisoformat(day)
    except ValueError:
        return None


def _last_written_ms(day: date) -> float:
    """When the last record may be written that refers to an object of this day. (In milliseconds: dates overflow.)"""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return midnight.timestamp() * _MS_PER_S + (timedelta(days=1) + _DAY_MARGIN) / timedelta(milliseconds=1)
