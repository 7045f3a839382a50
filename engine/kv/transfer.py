"""Moves blocks between the prefix cache and bytes, by their keys: the joint for lower tiers and for workers that only
prefill. Wrong KV is never used: each block is verified before it is written, and one that fails is a miss.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from blake3 import blake3

from engine.executor import Executor
from engine.kv.manager import KVManager
from engine.tally import Tally

# The beginning of every blob; another version is another beginning.
MAGIC = b"headrace KV 1\n"
# Binds a block's content to its key and layout: blocks that were swapped or relabelled fail as damaged ones do.
CONTENT = "headrace 2026-11 KV block content v1"
KEY_BYTES = DIGEST_BYTES = 32

_HEADER_SIZE = struct.Struct("<I")


class BlobHeader(msgspec.Struct, frozen=True):
    """What stands before the blocks. `layout` says what their numbers mean, and which kind of device computed them."""

    layout: str
    block_bytes: int
    num_blocks: int


class UnusableBlob(Exception):
    """A blob, from some block on, is nothing that this engine may use; the message says why. Never leaves the module:
    to those who ask for KV it is a miss."""


class ImportedKV(msgspec.Struct, frozen=True):
    """What became of a blob: blocks written, blocks that were there already, and why the rest was not used."""

    num_written: int
    num_present: int
    refused: str | None = None


class KVTransfer:
    """Export and import of KV. Called by the engine's thread, between steps.

    A handle is a list of block keys, first to last, as `models.kv_keys` makes them from tokens and `Engine.kv_keys`
    tells them of a running request. Keys hold model, tenant and all tokens up to their block, so that imported blocks
    are found by exactly the requests that they are right for. Damage is detected, malice is not: digests carry no
    secret, so blobs must come from where only workers may write.
    """

    def __init__(self, kv: KVManager, executor: Executor, tally: Tally) -> None:
        self._kv = kv
        self._executor = executor
        self._tally = tally

    def export(self, keys: Sequence[bytes]) -> bytes:
        """The blocks from the first key on, up to the first that is not in the cache (none: a blob without blocks)."""
        found: list[tuple[bytes, int]] = []
        for key in keys:
            block = self._kv.pool.find(key)
            if block is None:
                break
            found.append((key, block))
        return encode(self._executor.kv_layout, ((key, self._executor.read_block(block)) for key, block in found))

    def load(self, blob: bytes) -> ImportedKV:
        """Put a blob's blocks into the prefix cache, as many as fit, forgetting older ones for them.

        Never raises for what is in the blob: see `ImportedKV.refused`.
        """
        if not self._kv.is_caching:
            return ImportedKV(0, 0, "The prefix cache is off: set engine.prefix_cache.")
        held: list[int] = []
        num_written, refused = 0, None
        try:
            for key, content in decode(blob, self._executor.kv_layout):
                known = self._kv.pool.find(key)
                if known is None and not self._kv.pool.num_available:
                    break
                held.append(self._kv.hold(key))
                if known is None:
                    self._executor.write_block(held[-1], content)
                    self._kv.pool.name(held[-1], key)
                    num_written += 1
        except UnusableBlob as error:
            refused = str(error)
        finally:
            # The end of a prefix is forgotten before its beginning, without which it is worth nothing.
            for block in reversed(held):
                self._kv.pool.release(block)
        self._tally.num_imported_blocks += num_written
        self._tally.num_refused_imports += refused is not None
        return ImportedKV(num_written=num_written, num_present=len(held) - num_written, refused=refused)


def encode(layout: str, blocks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Blocks, as (key, content), with all that is needed to verify them."""
    parts = [key + _digest(layout, key, content) + content for key, content in blocks]
    block_bytes = len(parts[0]) - KEY_BYTES - DIGEST_BYTES if parts else 0
    header = msgspec.msgpack.encode(BlobHeader(layout=layout, block_bytes=block_bytes, num_blocks=len(parts)))
    return b"".join((MAGIC, _HEADER_SIZE.pack(len(header)), header, *parts))


def decode(blob: bytes, layout: str) -> Iterator[tuple[bytes, memoryview]]:
    """Verified blocks, as (key, content); UnusableBlob at the first that is not what its key says."""
    header, start = _header(blob)
    if header.layout != layout:
        raise UnusableBlob(f"The blob holds KV of the layout {header.layout!r}, not of {layout!r}.")
    size, rest = KEY_BYTES + DIGEST_BYTES + header.block_bytes, memoryview(blob)[start:]
    if len(rest) != header.num_blocks * size:
        raise UnusableBlob(f"The blob has {len(rest)} bytes of blocks, not {header.num_blocks} times {size}.")
    for number in range(header.num_blocks):
        block = rest[number * size : (number + 1) * size]
        key, content = bytes(block[:KEY_BYTES]), block[KEY_BYTES + DIGEST_BYTES :]
        if block[KEY_BYTES : KEY_BYTES + DIGEST_BYTES] != _digest(layout, key, content):
            raise UnusableBlob(f"Block {number} of {header.num_blocks} is damaged.")
        yield key, content


def _header(blob: bytes) -> tuple[BlobHeader, int]:
    """The header, and where the blocks begin."""
    start = len(MAGIC) + _HEADER_SIZE.size
    if len(blob) < start or not blob.startswith(MAGIC):
        raise UnusableBlob("These bytes are not exported KV.")
    (length,) = _HEADER_SIZE.unpack_from(blob, len(MAGIC))
    end = start + length
    if len(blob) < end:
        raise UnusableBlob("The blob ends within its header.")
    try:
        return msgspec.msgpack.decode(blob[start:end], type=BlobHeader), end
    except msgspec.MsgspecError as error:
        raise UnusableBlob(f"The blob's header is damaged: {error}.") from error


def _digest(layout: str, key: bytes, content: bytes | memoryview) -> bytes:
    named = layout.encode()
    digest = blake3(struct.pack("<Q", len(named)) + named + key, derive_key_context=CONTENT)
    return digest.update(content).digest()
