"""The objects of finished turns, put however long object storage is away: only the session of each waits for it."""

import asyncio

from consumers.gate.round import Put
from runtime.logging import get_logger
from runtime.storage import ObjectStore
from schemas.codec import SESSION_TURN
from schemas.errors import StorageUnavailable

log = get_logger(__name__)

_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 10.0


async def put_object(put: Put, objects: ObjectStore) -> None:
    """Put one object; it is durable when this returns. Putting it again, after a crash, puts the same bytes."""
    content = SESSION_TURN.encode(put.effect.content)
    delay_s = _FIRST_RETRY_S
    while not await _try_put(put, content, objects):
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, _LAST_RETRY_S)


async def _try_put(put: Put, content: bytes, objects: ObjectStore) -> bool:
    try:
        await objects.put(put.effect.key, content)
    except StorageUnavailable as error:
        log.warning("session_waits_for_storage", session=put.session.session, error=error.message)
        return False
    return True
