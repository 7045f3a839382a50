"""Object storage against a real S3."""

from collections.abc import Iterator

import msgspec
import pytest

from headrace.local.background import BackgroundStack
from runtime.storage import ObjectStore
from schemas.errors import ObjectMissing, SettingsError, StorageUnavailable
from schemas.settings import StorageSettings

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(stack: BackgroundStack) -> StorageSettings:
    return stack.endpoints.storage


@pytest.fixture
def store(settings: StorageSettings) -> Iterator[ObjectStore]:
    opened = ObjectStore(settings)
    yield opened
    opened.close()


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096, b"\x00" * 6_000_000])
async def test_what_was_put_is_what_is_got(store: ObjectStore, namespace: str, data: bytes) -> None:
    await store.put(f"{namespace}/a", data)
    assert await store.get(f"{namespace}/a") == data


@pytest.mark.parametrize("num_bytes", [0, 9, 10, 11, 600_000])
async def test_of_an_object_that_is_too_large_no_more_is_read_than_shows_that(
    store: ObjectStore, namespace: str, num_bytes: int
) -> None:
    await store.put(f"{namespace}/a", b"x" * num_bytes)
    assert await store.get(f"{namespace}/a", max_bytes=10) == b"x" * min(num_bytes, 11)


async def test_folders_are_what_has_more_below_it(store: ObjectStore, namespace: str) -> None:
    for name in ("acme/2026-01-02/x", "acme/2026-01-01/x", "acme/2026-01-01/y", "other/2026-01-01/x", "note"):
        await store.put(f"{namespace}/{name}", b"x")
    assert await store.folders(f"{namespace}/") == [f"{namespace}/acme/", f"{namespace}/other/"]
    assert await store.folders(f"{namespace}/acme/") == [f"{namespace}/acme/2026-01-0{day}/" for day in (1, 2)]
    assert await store.folders(f"{namespace}/nobody/") == []


async def test_putting_again_replaces_the_whole_object(store: ObjectStore, namespace: str) -> None:
    await store.put(f"{namespace}/a", b"long content")
    await store.put(f"{namespace}/a", b"short")
    assert await store.get(f"{namespace}/a") == b"short"


async def test_a_missing_object_is_not_a_fault_of_the_storage(store: ObjectStore, namespace: str) -> None:
    with pytest.raises(ObjectMissing, match=f"{namespace}/nothing") as caught:
        await store.get(f"{namespace}/nothing")
    assert not caught.value.retriable


async def test_keys_are_listed_below_their_prefix_and_sorted(store: ObjectStore, namespace: str) -> None:
    for name in ("b/2", "b/10", "a", "c/d/e", "b-not"):
        await store.put(f"{namespace}/{name}", b"x")
    assert await store.keys(f"{namespace}/b/") == [f"{namespace}/b/10", f"{namespace}/b/2"]
    assert await store.keys(f"{namespace}/c/") == [f"{namespace}/c/d/e"]
    assert await store.keys(f"{namespace}/none/") == []


async def test_deleting_twice_is_harmless(store: ObjectStore, namespace: str) -> None:
    await store.put(f"{namespace}/a", b"x")
    await store.delete(f"{namespace}/a")
    await store.delete(f"{namespace}/a")
    with pytest.raises(ObjectMissing):
        await store.get(f"{namespace}/a")


async def test_a_bucket_is_made_once(settings: StorageSettings, namespace: str) -> None:
    other = ObjectStore(msgspec.structs.replace(settings, bucket=f"bucket-{namespace}"))
    try:
        await other.ensure_bucket()
        await other.put("a", b"x")
        await other.ensure_bucket()
        assert await other.get("a") == b"x"
    finally:
        other.close()


async def test_a_wrong_key_is_refused_as_unavailable_and_the_secret_is_not_told(settings: StorageSettings) -> None:
    other = ObjectStore(msgspec.structs.replace(settings, secret_key="not-the-secret"))
    try:
        with pytest.raises(StorageUnavailable, match="object storage refused the call") as caught:
            await other.put("a", b"x")
        assert "not-the-secret" not in str(caught.value)
    finally:
        other.close()


async def test_a_storage_that_is_away_is_unavailable_and_retriable(settings: StorageSettings) -> None:
    other = ObjectStore(msgspec.structs.replace(settings, endpoint="127.0.0.1:1", timeout_s=1.0))
    try:
        with pytest.raises(StorageUnavailable, match="does not answer") as caught:
            await other.get("a")
        assert caught.value.retriable
    finally:
        other.close()


def test_without_an_endpoint_the_error_says_how_to_get_one() -> None:
    with pytest.raises(SettingsError, match="headrace up"):
        ObjectStore(StorageSettings())
