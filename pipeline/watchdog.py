"""Notices records that left the Kafka client and never reached a stage: a partition that stands still in silence."""

import asyncio
import time
from collections.abc import Iterable

from pipeline.claims import Claim, Claims, Partition
from pipeline.intake import Intake
from schemas.errors import BrokerUnavailable

# Far above what a record waits in Faust's queues, also while a backlog is worked off.
LIMIT_S = 30.0
_INTERVAL_S = 5.0


class Watchdog:
    """Keeps since when each partition has waited for the same lost record."""

    def __init__(self, intake: Intake, *, limit_s: float = LIMIT_S) -> None:
        self._intake = intake
        self._limit_s = limit_s
        self._since: dict[tuple[Partition, int], float] = {}

    def look(self, claims: Iterable[Claim], now_s: float) -> tuple[Partition, int] | None:
        """The partition and offset of a record that has been lost for too long, if there is one. Call it repeatedly."""
        lost = {
            (claim.partition, offset)
            for claim in claims
            if (offset := claim.oldest_open) is not None and not self._intake.has(claim.partition, offset)
        }
        self._since = {record: self._since.get(record, now_s) for record in lost}
        return next((record for record, since in self._since.items() if now_s - since > self._limit_s), None)


async def watch(intake: Intake, claims: Claims) -> None:
    """Look until a record is lost.

    Raises:
        BrokerUnavailable: one is; a new process reads it again.
    """
    watchdog = Watchdog(intake)
    while True:
        lost = watchdog.look(claims.current(), time.monotonic())
        if lost is not None:
            partition, offset = lost
            raise BrokerUnavailable(f"record {partition.topic}-{partition.partition}:{offset} never reached its stage")
        await asyncio.sleep(_INTERVAL_S)
