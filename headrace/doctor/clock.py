"""The cluster's clock against ours: deadlines go by the broker's, request ids by that of whoever asks."""

import time
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from headrace.doctor.base import Check, Finding, failed, ok, skipped, warning
from headrace.doctor.wire import read_quorum_clock_ms
from schemas.errors import BrokerUnavailable

CLOCK = "clock"

# Machines that are kept in time are within milliseconds.
WARN_MS = 1_000
# A stream is looked for in the log from a minute before its id was made (headrace/client/origins.py).
FAIL_MS = 60_000
_NUM_LOOKS = 3
_REMEDY = "keep this machine and the brokers in time: timedatectl set-ntp true"


class Skew(NamedTuple):
    """How far the cluster's clock is ahead of ours (negative: behind), and how far off that may be."""

    ahead_ms: float
    uncertainty_ms: float

    @property
    def at_least_ms(self) -> float:
        """The least difference that explains what was seen."""
        return max(0.0, abs(self.ahead_ms) - self.uncertainty_ms)


def check(admin: Any, node_id: int) -> Check:
    """The check, over a connected admin client."""

    async def examine() -> Finding:
        try:
            return judge(await measure(admin, node_id))
        except (NotImplementedError, BrokerUnavailable, IncompatibleBrokerVersion, KafkaError) as error:
            return skipped(CLOCK, f"this broker does not tell its time ({type(error).__name__})")

    return Check(CLOCK, examine, _REMEDY)


async def measure(admin: Any, node_id: int) -> Skew:
    """Ask a few times; the quickest answer is the surest (as in NTP, RFC 5905 section 8)."""
    return min([await _look(admin, node_id) for _ in range(_NUM_LOOKS)], key=lambda skew: skew.uncertainty_ms)


async def _look(admin: Any, node_id: int) -> Skew:
    asked_ms = time.time() * 1000
    there_ms = await read_quorum_clock_ms(admin, node_id)
    half_ms = (time.time() * 1000 - asked_ms) / 2
    return Skew(there_ms - (asked_ms + half_ms), half_ms)


def judge(skew: Skew) -> Finding:
    """Whether the two agree well enough."""
    side = "ahead of" if skew.ahead_ms > 0 else "behind"
    found = f"the cluster's is {abs(skew.ahead_ms) / 1000:.3f} s {side} ours (± {skew.uncertainty_ms / 1000:.3f} s)"
    if skew.at_least_ms >= FAIL_MS:
        return failed(CLOCK, found, _REMEDY)
    if skew.at_least_ms >= WARN_MS:
        return warning(CLOCK, found, _REMEDY)
    return ok(CLOCK, found)
