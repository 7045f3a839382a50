"""Waiting for an object storage that is away: the call is repeated until it answers, and who waits is counted."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runtime.logging import get_logger
from runtime.metrics import STORAGE_WAITING
from schemas.errors import StorageUnavailable

log = get_logger(__name__)

T = TypeVar("T")

_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 5.0
# Of the delay, so that all who wait do not come back to a recovering storage in step.
_JITTER = 0.5


class Patience:
    """Repeats calls of object storage, with pauses that grow. It ends by the call's answer or by cancellation."""

    def __init__(self, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._num_waiting = 0

    @property
    def num_waiting(self) -> int:
        """How many calls wait for their next try."""
        return self._num_waiting

    async def of(self, call: Callable[[], Awaitable[T]], *, about: str, event: str = "storage_unavailable") -> T:
        """The answer of `call`, however long storage does not answer. Raises whatever else it raises.

        `about` is the object, and `event` what the log says of each try that was in vain.
        """
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                return await call()
            except StorageUnavailable as error:
                log.warning(event, object=about, error=error.message, retry_in_s=delay_s)
            await self._wait(delay_s * (1 - _JITTER * random.random()))  # noqa: S311 - spreads load, keeps no secret
            delay_s = min(delay_s * 2, _MAX_DELAY_S)

    async def _wait(self, delay_s: float) -> None:
        self._num_waiting += 1
        STORAGE_WAITING.inc()
        try:
            await self._sleep(delay_s)
        finally:
            self._num_waiting -= 1
            STORAGE_WAITING.dec()
