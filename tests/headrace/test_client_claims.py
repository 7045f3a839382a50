"""What a client says of values that do not fit a record where there is no object storage for them."""

import msgspec
import pytest

from headrace.client.claims import ClientClaims
from headrace.client.messages import encode_chat
from schemas.claims import MAX_CLAIMED_BYTES, MAX_INLINE_BYTES, claim_for
from schemas.errors import RequestTooLarge, SettingsError, StorageUnavailable
from schemas.names import Names
from schemas.results import Result
from schemas.settings import StorageSettings

NAMES = Names()
# Nothing listens on the port of the discard service.
AWAY = StorageSettings(endpoint="127.0.0.1:9", access_key="k", secret_key="s", timeout_s=0.2)
REQUEST = encode_chat("hi", model="m", tenant="default", session=None, request_id="r1", options={})
LARGE = encode_chat("x" * MAX_INLINE_BYTES, model="m", tenant="default", session=None, request_id="r1", options={})
CLAIMED = Result(
    id="c",
    object="o",
    created=0,
    model="m",
    request_id="r1",
    status="completed",
    claim=claim_for(b"{}", NAMES, tenant="default", now_ms=0),
)


async def test_what_fits_a_record_needs_no_storage() -> None:
    claims = ClientClaims(StorageSettings(), NAMES)
    assert await claims.fitting(REQUEST) is REQUEST
    whole = msgspec.structs.replace(CLAIMED, claim=None)
    assert await claims.whole(whole) is whole


async def test_without_storage_the_error_says_what_needs_it_and_what_to_set() -> None:
    claims = ClientClaims(StorageSettings(), NAMES)
    with pytest.raises(SettingsError, match=r"the request has \d+ bytes .* set storage\.endpoint"):
        await claims.fitting(LARGE)
    with pytest.raises(SettingsError, match=r"the result of r1 lies in object storage.* set storage\.endpoint"):
        await claims.whole(CLAIMED)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "127.0.0.1:9/bucket", "127.0.0.1:99999999"])
async def test_an_address_that_is_none_is_an_error_of_the_settings(endpoint: str) -> None:
    claims = ClientClaims(StorageSettings(endpoint=endpoint, access_key="k", secret_key="s"), NAMES)
    with pytest.raises(SettingsError, match=r"the request has \d+ bytes .* write HOST:PORT"):
        await claims.fitting(LARGE)


async def test_storage_that_is_away_is_an_error_that_may_pass() -> None:
    claims = ClientClaims(AWAY, NAMES)
    with pytest.raises(StorageUnavailable, match=r"must go through object storage: .*does not answer") as raised:
        await claims.fitting(LARGE)
    assert raised.value.retriable
    with pytest.raises(StorageUnavailable, match=r"the result of r1 lies in object storage"):
        await claims.whole(CLAIMED)
    claims.close()


async def test_what_nobody_would_read_is_not_put() -> None:
    value = msgspec.json.encode({"model": "m", "messages": "x" * (MAX_CLAIMED_BYTES + 1)})
    with pytest.raises(RequestTooLarge, match=str(MAX_CLAIMED_BYTES)):
        await ClientClaims(AWAY, NAMES).fitting(REQUEST._replace(value=value))
