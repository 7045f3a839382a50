"""Removes the objects of claims that no kept record refers to any more: by the day in their key, about once an hour."""

import asyncio

from runtime.clock import BrokerClock
from runtime.logging import get_logger
from runtime.storage import ObjectStore
from schemas.claims import claims_prefix, collectable, is_claimed
from schemas.errors import StorageUnavailable
from schemas.names import Names
from schemas.settings import Settings

log = get_logger(__name__)

# Whoever owns this number collects: one in a namespace, and there always is one.
COLLECTING_PARTITION = 0

_INTERVAL_S = 3600.0
_MS_PER_HOUR = 3_600_000
_MS_PER_S = 1000


def kept_ms(settings: Settings) -> float:
    """How long a record may be read that refers to an object: written late in its request's life, and kept longest."""
    longest_hours = max(settings.topics.retention_hours, settings.topics.dead_letter_hours)
    return longest_hours * _MS_PER_HOUR + settings.gate.max_age_s * _MS_PER_S


class Collector:
    """Collects at once and then every hour. Storage that is away is asked again an hour later: nothing waits for it."""

    def __init__(self, objects: ObjectStore, names: Names, clock: BrokerClock, *, kept_ms: float) -> None:
        self._objects = objects
        self._names = names
        self._clock = clock
        self._kept_ms = kept_ms

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            try:
                await self.collect()
            except StorageUnavailable as error:
                log.warning("claims_not_collected", error=error.message)
            await asyncio.sleep(_INTERVAL_S)

    async def collect(self) -> int:
        """Delete what nothing can refer to, and give how many objects that was. Raises StorageUnavailable.

        Only days that are over are looked into: of what is kept there may be much.
        """
        num_deleted = 0
        for tenant in await self._objects.folders(claims_prefix(self._names)):
            days = await self._objects.folders(tenant)
            for day in collectable(days, self._names, kept_ms=self._kept_ms, now_ms=self._clock.now_ms()):
                for key in filter(is_claimed, await self._objects.keys(day)):
                    await self._objects.delete(key)
                    num_deleted += 1
        if num_deleted:
            log.info("claims_collected", num_objects=num_deleted)
        return num_deleted
