"""Claims on the way through the pipeline: of a turn, to be followed, and of its sequence, to be made."""

import asyncio

import msgspec

from pipeline.claimed import ClaimedBody
from pipeline.tokenize import PromptPool
from runtime.claims import ClaimStore
from runtime.patience import Patience
from schemas.batches import Batch, Sequence
from schemas.claims import MAX_INLINE_BYTES, claim_for
from schemas.codec import BATCH
from schemas.contents import SEQUENCE_CONTENTS
from schemas.errors import RequestTooLarge
from schemas.names import Lane, Names
from schemas.turns import Turn

# Each is in memory several times on its way to a child process: as it was read, framed, and in the socket's buffer.
_MAX_CONTENTS_AT_ONCE = 2


class TurnClaims:
    """Waits as long as storage does not answer: the turn is not lost, and only its partition waits with it."""

    def __init__(self, store: ClaimStore, names: Names, pool: PromptPool) -> None:
        self._store = store
        self._names = names
        self._pool = pool
        self._patience = Patience()
        self._in_memory = asyncio.Semaphore(_MAX_CONTENTS_AT_ONCE)

    @property
    def num_waiting(self) -> int:
        """How many turns wait for a storage that does not answer."""
        return self._patience.num_waiting

    async def whole(self, turn: Turn, *, max_prompt_tokens: int, lane: Lane) -> Turn:
        """The turn with all of its request that the stages look at.

        Raises:
            RequestError: its object is missing or damaged, or the request in it is not valid or too long.
            PromptFault: reading it killed its process, twice.
        """
        if (claim := turn.request.claim) is None:
            return turn

        async def read() -> Turn:
            async with self._in_memory:
                content = await self._store.fetch(claim)
                job = ClaimedBody(
                    model=turn.request.model,
                    inline=_inline(turn),
                    content=content,
                    max_prompt_tokens=max_prompt_tokens,
                )
                return msgspec.structs.replace(turn, request=await self._pool.read(job, lane=lane), unknown_fields={})

        return await self._patience.of(read, about=claim.object)

    async def fitting(self, sequence: Sequence) -> Sequence:
        """The sequence as it fits a record. What does not is durable in object storage when this returns.

        Raises:
            RequestTooLarge: it does not fit without its prompt either.
        """
        if _num_bytes(sequence) > MAX_INLINE_BYTES:
            envelope, content = sequence.envelope, SEQUENCE_CONTENTS.taken(sequence)
            claim = claim_for(content, self._names, tenant=envelope.tenant, now_ms=envelope.accepted_at_ms)
            await self._patience.of(lambda: self._store.put(claim, content), about=claim.object)
            sequence = SEQUENCE_CONTENTS.claimed(sequence, claim)
        # Results repeat the sampling, in JSON.
        rest = max(_num_bytes(sequence), len(msgspec.json.encode(sequence.sampling)))
        if rest > MAX_INLINE_BYTES:
            raise RequestTooLarge(
                f"what decides the next token (`stop`, `logit_bias`, the structure of the answer) takes {rest} bytes; "
                f"at most {MAX_INLINE_BYTES} can travel"
            )
        return sequence


def _inline(turn: Turn) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(turn.request) | turn.unknown_fields)


def _num_bytes(sequence: Sequence) -> int:
    return len(BATCH.encode(Batch(members=[sequence])))
