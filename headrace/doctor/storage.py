"""Object storage: there, with its bucket, and with the few promises of S3 that headrace rests on."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from headrace.doctor.base import Check, Finding, failed, find, find_all, ok, skipped
from headrace.doctor.situation import Situation
from headrace.doctor.tcp import parse_address, refusal
from runtime.storage import ObjectStore
from schemas.errors import ObjectMissing, SettingsError
from schemas.names import Names

STORAGE, OBJECTS, CONDITIONAL = "object storage", "S3 put, get, delete", "S3 conditional put"
NAMES = (STORAGE, OBJECTS, CONDITIONAL)

_HTTP_PORT, _HTTPS_PORT = 80, 443
# Three tries of this must fit the limit of a check.
_TIMEOUT_S = 2.0
_REMEDY = "correct storage.endpoint, storage.secure, storage.access_key and storage.secret_key, or run `headrace up`"
_RIGHTS = "let storage.access_key read, write and delete objects of the bucket"
_OTHER_STORE = "use object storage that obeys If-None-Match: AWS S3, SeaweedFS, MinIO and others do"


async def examine_storage(situation: Situation) -> list[Finding]:
    """All that can be found with object storage; without any, that nothing was looked at."""
    if not situation.settings.storage.endpoint:
        return nothing("no object storage set or running")
    try:
        async with _store(situation) as store:
            reached = await find(Check(STORAGE, lambda: _reach(situation, store), _REMEDY))
            if any(finding.status == "failed" for finding in reached):
                return [*reached, *nothing("the bucket cannot be reached")[1:]]
            return [*reached, *await find_all(_checks(situation, store))]
    except SettingsError as error:
        return [failed(STORAGE, error.message, _REMEDY), *nothing("the bucket cannot be reached")[1:]]


def nothing(why: str) -> list[Finding]:
    """The findings of this file, none of which was looked at."""
    return [skipped(name, why) for name in NAMES]


@asynccontextmanager
async def _store(situation: Situation) -> AsyncIterator[ObjectStore]:
    storage = situation.settings.storage
    store = ObjectStore(msgspec.structs.replace(storage, timeout_s=min(storage.timeout_s, _TIMEOUT_S)))
    try:
        yield store
    finally:
        store.close()


def _checks(situation: Situation, store: ObjectStore) -> list[Check]:
    topics = situation.settings.topics
    key = Names(topics.namespace, topics.generation).object_key(f"doctor/{uuid.uuid4()}")
    return [
        Check(OBJECTS, lambda: objects(store, f"{key}-object"), _RIGHTS),
        Check(CONDITIONAL, lambda: conditional_put(store, f"{key}-conditional"), _OTHER_STORE),
    ]


async def _reach(situation: Situation, store: ObjectStore) -> Finding:
    storage = situation.settings.storage
    address = parse_address(storage.endpoint or "", _HTTPS_PORT if storage.secure else _HTTP_PORT)
    # Asked before the SDK is: its threads cannot be told to stop, and an address that swallows packets would hold them.
    why = await refusal(address)
    if why is not None:
        return failed(STORAGE, f"{address}: {why}", _REMEDY)
    if not await store.has_bucket():
        remedy = f"create the bucket {storage.bucket!r}, or start a gate with the right to do it, or set storage.bucket"
        return failed(STORAGE, f"{address} answers, but has no bucket {storage.bucket!r}", remedy)
    return ok(STORAGE, f"{address} has the bucket {storage.bucket!r}")


async def objects(store: ObjectStore, key: str) -> Finding:
    """What was put is what is got, and deleted it is gone."""
    content = uuid.uuid4().bytes
    try:
        await store.put(key, content)
        if await store.get(key) != content:
            return failed(OBJECTS, "an object comes back other than it was put", "use other object storage")
    finally:
        await store.delete(key)
    try:
        await store.get(key)
    except ObjectMissing:
        return ok(OBJECTS, "an object was put, read back and deleted")
    return failed(OBJECTS, "a deleted object can still be read", "use object storage that is strongly consistent")


async def conditional_put(store: ObjectStore, key: str) -> Finding:
    """A put that must not replace anything (If-None-Match: *) is refused the second time, and changes nothing."""
    try:
        if not await store.put_new(key, b"first"):
            return failed(CONDITIONAL, "refused, although there was no object", _OTHER_STORE)
        if await store.put_new(key, b"second") or await store.get(key) != b"first":
            return failed(CONDITIONAL, "If-None-Match is ignored: an object was replaced", _OTHER_STORE)
    finally:
        await store.delete(key)
    return ok(CONDITIONAL, "a second put with If-None-Match was refused, as it must be")
