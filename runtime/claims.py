"""The objects of claim checks: put before the record that refers to them, verified when they are read."""

import asyncio
from typing import Protocol

from schemas.claims import ClaimCheck, fits
from schemas.errors import ClaimDamaged, ClaimMissing, ObjectMissing


class Objects(Protocol):
    """The part of object storage that is needed here."""

    async def put(self, key: str, data: bytes) -> None:
        """Write one object; StorageUnavailable."""
        ...

    async def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """Read one object; ObjectMissing, StorageUnavailable."""
        ...


class ClaimStore:
    """Puts and reads the objects. Every call may raise StorageUnavailable (retriable)."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def put(self, claim: ClaimCheck, content: bytes) -> None:
        """Write the object of a claim that was made for `content`. It is durable when this returns."""
        await self._objects.put(claim.object, content)

    async def fetch(self, claim: ClaimCheck) -> bytes:
        """Read what a claim is about. No more is read than the claim says that there is.

        Raises:
            ClaimMissing: there is no such object.
            ClaimDamaged: it has another size or hash.
        """
        try:
            content = await self._objects.get(claim.object, max_bytes=claim.num_bytes)
        except ObjectMissing as error:
            raise ClaimMissing(
                f"there is no object {claim.object!r}: put it before the record that refers to it", param="claim"
            ) from error
        if not await asyncio.to_thread(fits, claim, content):
            raise ClaimDamaged(
                f"the object {claim.object!r} is not the one that was meant: its size or its SHA-256 differs",
                param="claim",
            )
        return content
