"""A real model small enough for tests: two layers of random weights, in the format and under the code of real ones."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from models.catalog import open_model
from schemas.batches import Sequence
from schemas.envelope import Envelope, ModelHashes
from schemas.sampling import SamplingParams
from tests.consumers.worker.builders import TRACEPARENT
from tests.models.gguf_writer import write_gguf

NUM_LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 2, 64, 96, 261
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
CONTEXT_LENGTH = 4096
MODEL_NAME = "tiny"


@dataclass(frozen=True)
class TinyModel:
    """The model's file, and requests for it."""

    path: Path
    hashes: ModelHashes

    @classmethod
    def write(cls, folder: Path) -> "TinyModel":
        """Write the file into a folder."""
        path = write_tiny_model(folder / "tiny.gguf")
        return cls(path, open_model(MODEL_NAME, str(path)).hashes)

    def member(
        self,
        request_id: str,
        *,
        sampling: dict[str, Any] | None = None,
        envelope: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Sequence:
        """A member of a batch; `sampling`, `envelope` and `changes` are what differs from a short sampled chat."""
        now_ms = int(time.time() * 1000)
        base = Envelope(
            request_id=request_id,
            key=request_id,
            accepted_at_ms=now_ms,
            deadline_ms=now_ms + 120_000,
            traceparent=TRACEPARENT,
        )
        return Sequence(
            envelope=msgspec.structs.replace(base, **envelope or {}),
            model=MODEL_NAME,
            sampling=SamplingParams(**{"max_tokens": 12, "seed": 5, "ignore_eos": True, **(sampling or {})}),
            **{"hashes": self.hashes, "prompt_token_ids": [10, 20, 30]} | changes,  # type: ignore[arg-type] # a shorthand
        )


def write_tiny_model(path: Path) -> Path:
    """The same file each time, so that what it says can be compared between processes."""
    random = np.random.default_rng(7)

    def weights(*shape: int) -> np.ndarray:
        drawn: np.ndarray = random.standard_normal(shape) * (2.0 / shape[-1]) ** 0.5
        return drawn.astype(np.float32)

    tensors = {"token_embd.weight": weights(VOCABULARY, HIDDEN), "output_norm.weight": np.ones(HIDDEN, np.float32)}
    for layer in range(NUM_LAYERS):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": np.ones(HIDDEN, np.float32),
            f"blk.{layer}.attn_q.weight": weights(NUM_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": weights(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": weights(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": weights(HIDDEN, NUM_HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": np.ones(HIDDEN, np.float32),
            f"blk.{layer}.ffn_gate.weight": weights(INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": weights(INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": weights(HIDDEN, INTERMEDIATE),
        }
    return write_gguf(path, tensors=tensors, llama__context_length=CONTEXT_LENGTH)
