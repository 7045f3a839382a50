"""Dead letters that fit a record travel whole; what becomes of larger ones where storage is away."""

import msgspec
import pytest

from consumers.gate.bundles import fitted
from consumers.gate.refusals import dead_letter
from runtime.storage import ObjectStore
from schemas.claims import MAX_INLINE_BYTES
from schemas.codec import DEAD_LETTER
from schemas.errors import MalformedRecord
from schemas.names import Names
from schemas.settings import StorageSettings
from tests.consumers.gate.builders import NOW_MS, arrival

NAMES = Names("test")
# Nothing listens on the port of the discard service.
AWAY = StorageSettings(endpoint="127.0.0.1:9", access_key="k", secret_key="s", timeout_s=0.2)


@pytest.fixture
def objects() -> ObjectStore:
    return ObjectStore(AWAY)


async def test_a_letter_that_fits_needs_no_storage(objects: ObjectStore) -> None:
    letter = dead_letter(arrival(b"x" * (MAX_INLINE_BYTES // 2), key=b"k"), "r1", MalformedRecord("broken"))
    assert await fitted(letter, "default", NAMES, objects, now_ms=NOW_MS) is letter


@pytest.mark.parametrize("big", ["key", "value", "headers"])
async def test_without_storage_a_large_letter_still_names_its_record(objects: ObjectStore, big: str) -> None:
    large = b"x" * MAX_INLINE_BYTES
    record = arrival(
        large if big == "value" else b"{",
        key=large if big == "key" else b"k",
        headers=(("h", large if big == "headers" else b""),),
    )
    letter = dead_letter(record, "r1", MalformedRecord("broken"))
    reference = await fitted(letter, "default", NAMES, objects, now_ms=NOW_MS)
    assert reference == msgspec.structs.replace(letter, key=None, value=None, headers=[])
    assert len(DEAD_LETTER.encode(reference)) < 1_000
    assert (reference.topic, reference.partition, reference.offset) == record[:3]
