"""Dead letters that do not fit a record: the bundle goes to object storage, and a reference to it travels instead."""

import asyncio

import msgspec

from runtime.claims import ClaimStore
from runtime.logging import get_logger
from runtime.storage import ObjectStore
from schemas.claims import MAX_INLINE_BYTES, claim_for
from schemas.codec import DEAD_LETTER
from schemas.control import DeadLetter
from schemas.errors import StorageUnavailable
from schemas.names import Names

log = get_logger(__name__)

# Nothing behind a broken record is decided before it is: a bundle must not hold up its partition when storage is away.
_PATIENCE_S = 5.0


async def fitted(letter: DeadLetter, tenant: str, names: Names, objects: ObjectStore, *, now_ms: float) -> DeadLetter:
    """The letter itself if it fits a record, else one that refers to its bundle in object storage.

    Where storage does not answer in time the letter goes without its bytes: it still names the record on `requests`.
    """
    bundle = DEAD_LETTER.encode(letter)
    if len(bundle) <= MAX_INLINE_BYTES:
        return letter
    # Of the letter's day and not of the record's, from which a letter that is written late would not be kept as long.
    claim = claim_for(bundle, names, tenant=tenant, now_ms=now_ms)
    reference = msgspec.structs.replace(letter, key=None, value=None, headers=[])
    try:
        await asyncio.wait_for(ClaimStore(objects).put(claim, bundle), _PATIENCE_S)
    except (StorageUnavailable, TimeoutError) as error:
        log.warning("dead_letter_without_bytes", request=letter.request_id, num_bytes=len(bundle), error=str(error))
        return reference
    return msgspec.structs.replace(reference, object=claim.object)
