"""What is too large for a record, as a client sees it: nothing of it, as long as object storage can be reached."""

import time
from typing import TYPE_CHECKING

from headrace.client.messages import OutgoingRequest
from runtime.claims import ClaimStore
from schemas.bodies import split_body
from schemas.claims import MAX_CLAIMED_BYTES, MAX_INLINE_BYTES, claim_for
from schemas.contents import RESULT_CONTENTS
from schemas.errors import HeadraceError, RequestTooLarge, SettingsError, StorageUnavailable
from schemas.names import Names
from schemas.results import Result
from schemas.settings import StorageSettings

if TYPE_CHECKING:
    from runtime.storage import ObjectStore

_MS_PER_S = 1000


class ClientClaims:
    """Makes the claims of requests and follows those of results. Storage is connected to when it is first needed."""

    def __init__(self, storage: StorageSettings, names: Names) -> None:
        self._storage = storage
        self._names = names
        self._objects: ObjectStore | None = None

    async def fitting(self, request: OutgoingRequest) -> OutgoingRequest:
        """The request as it fits a record. What does not is durable in object storage when this returns.

        Raises:
            RequestTooLarge: it is too large for an object as well.
            SettingsError: there is no object storage to put it into.
            StorageUnavailable: object storage does not answer.
        """
        if len(request.value) <= MAX_INLINE_BYTES:
            return request
        body = split_body(request.value, max_inline_bytes=MAX_INLINE_BYTES)
        if len(body.content) > MAX_CLAIMED_BYTES:
            raise RequestTooLarge(
                f"the request has {len(request.value)} bytes, and no more than {MAX_CLAIMED_BYTES} are read: shorten it"
            )
        # The local clock's day may be another than the broker's: the gate allows for a day.
        now_ms = time.time() * _MS_PER_S
        claim = claim_for(body.content, self._names, tenant=request.tenant, now_ms=now_ms)
        what = f"the request has {len(request.value)} bytes and must go through object storage"
        try:
            await ClaimStore(self._connected()).put(claim, body.content)
        except (SettingsError, StorageUnavailable) as error:
            raise _named(error, what) from error
        return request._replace(value=body.claimed(claim, kind=request.kind))

    async def whole(self, result: Result) -> Result:
        """The result with what its record did not carry.

        Raises:
            ClaimMissing: its object is gone.
            ClaimDamaged: its object is not the one that was meant.
            SettingsError, StorageUnavailable: as `fitting`.
        """
        if (claim := result.claim) is None:
            return result
        try:
            content = await ClaimStore(self._connected()).fetch(claim)
        except (SettingsError, StorageUnavailable) as error:
            raise _named(error, f"the result of {result.request_id} lies in object storage") from error
        return RESULT_CONTENTS.joined(result, content)

    def close(self) -> None:
        """Let storage go, if it was ever needed."""
        if self._objects is not None:
            self._objects.close()

    def _connected(self) -> "ObjectStore":
        if self._objects is None:
            # (Its SDK is imported where it is needed: most clients never do.)
            from runtime.storage import ObjectStore

            self._objects = ObjectStore(self._storage)
        return self._objects


def _named(error: HeadraceError, what: str) -> HeadraceError:
    """The same error, with what it is that could not be done."""
    return type(error)(f"{what}: {error.message}")
