"""Who was cancelled: what `control` has said, for as long as a request that is meant can still turn up. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from consumers.journal import RequestIdentity, identity_of
from consumers.worker.takeover import DEDUP_WINDOW_MS
from schemas.control import Cancel
from schemas.envelope import Envelope
from schemas.errors import RequestCancelled

_MS_PER_S = 1000
_FORGET_EVERY_MS = 60_000

# The reason becomes part of a result, which must fit a record whatever somebody wrote there.
_MAX_REASON_LENGTH = 200


# What a request ends with if it was cancelled; None if it was not.
CancelOf = Callable[[Envelope], RequestCancelled | None]


def nobody_cancelled(_: Envelope) -> None:
    """The answer where nobody can be cancelled."""


class _Noted(NamedTuple):
    at_ms: int
    reason: str | None


class CancelBook:
    """Cancels by who is meant: the same id of another tenant or session is another request.

    A cancel means the requests that were accepted before it, and those that come a little later: client and canceller
    write through different connections. After the window in which an id names the same request it means no more of
    them. It is forgotten when all that it can mean has expired, by the only time there is: that of the log.
    """

    def __init__(self, max_age_s: float) -> None:
        self._max_age_ms = max_age_s * _MS_PER_S
        self._noted: dict[RequestIdentity, _Noted] = {}
        self._newest_ms = self._forgot_at_ms = 0

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._noted)

    def note(self, cancel: Cancel, at_ms: int) -> RequestIdentity:
        """Note a cancel that stands in the log since `at_ms` (broker time); who is meant. Of several the last holds."""
        identity = RequestIdentity(cancel.tenant, cancel.key, cancel.request_id)
        known = self._noted.get(identity)
        if known is None or known.at_ms < at_ms:
            self._noted[identity] = _Noted(at_ms, cancel.reason)
        self._newest_ms = max(self._newest_ms, at_ms)
        if self._newest_ms - self._forgot_at_ms >= _FORGET_EVERY_MS:
            self._forget()
        return identity

    def find(self, envelope: Envelope) -> RequestCancelled | None:
        """What the request ends with, if it was cancelled."""
        noted = self._noted.get(identity_of(envelope))
        if noted is None or envelope.accepted_at_ms > noted.at_ms + DEDUP_WINDOW_MS:
            return None
        reason = f": {noted.reason[:_MAX_REASON_LENGTH]}" if noted.reason else ""
        return RequestCancelled(f"the request was cancelled{reason}")

    def _forget(self) -> None:
        self._forgot_at_ms = self._newest_ms
        # Requests accepted up to the end of the window live for `max_age` from then.
        oldest_ms = self._newest_ms - self._max_age_ms - DEDUP_WINDOW_MS
        self._noted = {identity: noted for identity, noted in self._noted.items() if noted.at_ms >= oldest_ms}
