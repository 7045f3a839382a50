"""What is too large for a record, on its way to a worker and from it. Only the request that it belongs to waits."""

from functools import partial

from runtime.claims import ClaimStore
from runtime.patience import Patience
from schemas.batches import Sequence
from schemas.claims import MAX_INLINE_BYTES, claim_for
from schemas.codec import RESULT
from schemas.contents import RESULT_CONTENTS, SEQUENCE_CONTENTS
from schemas.names import Names
from schemas.results import Result


class WorkerClaims:
    """Follows the claims of sequences and makes those of results, however long object storage is away."""

    def __init__(self, store: ClaimStore, names: Names) -> None:
        self._store = store
        self._names = names
        self._patience = Patience()

    async def whole(self, sequence: Sequence) -> Sequence:
        """The sequence with all that it needs to run.

        Raises:
            ClaimMissing: its object is gone.
            ClaimDamaged: its object is not the one that was meant.
        """
        if (claim := sequence.claim) is None:
            return sequence
        content = await self._patience.of(partial(self._store.fetch, claim), about=claim.object)
        return SEQUENCE_CONTENTS.joined(sequence, content)

    async def fitting(self, terminal: Result, *, now_ms: float) -> Result:
        """The result as it fits a record. What does not is durable in object storage when this returns.

        The object follows from the result alone (its key also from the day): putting it again is harmless.
        """
        if len(RESULT.encode(terminal)) <= MAX_INLINE_BYTES:
            return terminal
        content = RESULT_CONTENTS.taken(terminal)
        claim = claim_for(content, self._names, tenant=terminal.tenant, now_ms=now_ms)
        await self._patience.of(partial(self._store.put, claim, content), about=claim.object)
        return RESULT_CONTENTS.claimed(terminal, claim)
