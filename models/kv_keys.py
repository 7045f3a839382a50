"""Names of KV blocks: what a block's keys and values depend on, and nothing else, hashed the same in every process.

A key chains over all tokens before its block, so equal keys mean equal context: PagedAttention's prefix sharing (Kwon
et al., 2023), with a cryptographic hash because a collision would show one user's KV to another.
"""

import struct
from collections.abc import Iterable

from blake3 import blake3

from schemas.errors import InvalidValue

BLOCK_SIZE = 16

# Changes whenever the meaning of a key does, so that old blocks in a lower tier are misses.
CONTEXT = "headrace 2026-11 KV block key v1"

_BLOCK = struct.Struct(f"<{BLOCK_SIZE}I")


class BlockKeyChain:
    """The keys of one sequence as it grows.

    `model_hash`, `kv_dtype`, `layout` and `adapter` say which numbers a block holds, `salt` who may share them: the
    server sets it per tenant, never the client. Keys are 32 bytes each; a block that is not full has none.
    """

    def __init__(self, *, model_hash: str, kv_dtype: str, layout: str, adapter: str = "", salt: str = "") -> None:
        root = blake3(derive_key_context=CONTEXT)
        for part in (model_hash, kv_dtype, layout, adapter, salt):
            encoded = part.encode()
            root.update(struct.pack("<Q", len(encoded)) + encoded)  # with its length: "a","bc" is not "ab","c"
        self._previous = root.digest()
        self._pending: list[int] = []
        self.keys: list[bytes] = []

    def append(self, token_ids: Iterable[int]) -> list[bytes]:
        """Add tokens; returns the keys of the blocks that they filled."""
        self._pending += token_ids
        num_full = len(self._pending) // BLOCK_SIZE
        filled = [self._next_key(index * BLOCK_SIZE) for index in range(num_full)]
        del self._pending[: num_full * BLOCK_SIZE]
        self.keys += filled
        return filled

    def _next_key(self, start: int) -> bytes:
        try:
            block = _BLOCK.pack(*self._pending[start : start + BLOCK_SIZE])
        except struct.error as error:
            raise InvalidValue(f"Token ids must fit 32 bits without sign: {error}.") from error
        self._previous = blake3(self._previous + block).digest()
        return self._previous


def block_keys(
    token_ids: Iterable[int], *, model_hash: str, kv_dtype: str, layout: str, adapter: str = "", salt: str = ""
) -> list[bytes]:
    """The keys of all full blocks of BLOCK_SIZE tokens, first to last."""
    chain = BlockKeyChain(model_hash=model_hash, kv_dtype=kv_dtype, layout=layout, adapter=adapter, salt=salt)
    return chain.append(token_ids)
