"""Dead letters that do not fit a record: the bundle goes to object storage, and a reference to it travels instead."""

import asyncio
import hashlib
from datetime import UTC, datetime

import msgspec

from runtime.logging import get_logger
from runtime.storage import ObjectStore
from schemas.codec import DEAD_LETTER
from schemas.control import DeadLetter
from schemas.errors import StorageUnavailable
from schemas.names import Names

log = get_logger(__name__)

MAX_BUNDLE_BYTES = 512 * 1024

# Nothing behind a broken record is decided before it is: a bundle must not hold up its partition when storage is away.
_PATIENCE_S = 5.0


async def fitted(letter: DeadLetter, tenant: str, names: Names, objects: ObjectStore) -> DeadLetter:
    """The letter itself if it fits a record, else one that refers to its bundle in object storage.

    Where storage does not answer in time the letter goes without its bytes: it still names the record on `requests`.
    """
    bundle = DEAD_LETTER.encode(letter)
    if len(bundle) <= MAX_BUNDLE_BYTES:
        return letter
    day = datetime.fromtimestamp(letter.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d")
    key = names.object_key(f"claims/{tenant}/{day}/{hashlib.sha256(bundle).hexdigest()}")
    reference = msgspec.structs.replace(letter, key=None, value=None, headers=[])
    try:
        await asyncio.wait_for(objects.put(key, bundle), _PATIENCE_S)
    except (StorageUnavailable, TimeoutError) as error:
        log.warning("dead_letter_without_bytes", request=letter.request_id, num_bytes=len(bundle), error=str(error))
        return reference
    return msgspec.structs.replace(reference, object=key)
