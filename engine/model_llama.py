"""The llama family over paged KV: one forward pass for any mix of prompts and single tokens."""

import torch

from engine.weights import ModelWeights
from kernels import ops
from kernels.cpu.rows import RowPlan
from kernels.paging import KVShape, PagedCache, RowSpan
from models.spec import ModelSpec


class LlamaModel:
    """Decoder-only transformer with RMS norm, rotary positions, grouped queries and SwiGLU (Touvron et al., 2023)."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights) -> None:
        self._weights = weights
        self._num_heads = spec.num_heads
        self._eps = spec.rms_norm_eps
        self._dtype = weights.embedding.dtype
        self._rotary = ops.rotary_table(spec.context_length, spec.head_dim, spec.rope_theta)
        self.kv_shape = KVShape(spec.num_layers, spec.num_kv_heads, spec.head_dim, self._dtype)

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, spans: list[RowSpan], sampled: torch.Tensor, cache: PagedCache
    ) -> torch.Tensor:
        """Compute rows and store their KV; logits float32 `[len(sampled), vocab_size]` of the rows in `sampled`.

        token_ids: int64 `[rows]`, the rows of the spans in their order; sampled: int64 row numbers, may be empty.
        """
        plan = ops.plan_rows(spans, cache, self._rotary, self._num_heads)
        hidden = ops.embed(token_ids, self._weights.embedding)
        delta: torch.Tensor | None = None
        for layer in range(len(self._weights.layers)):
            delta = self._block(layer, hidden, delta, plan, cache)
        last = None if delta is None else delta[sampled]
        normed = ops.rms_norm(hidden[sampled], last, self._weights.final_norm, self._eps, torch.float32)
        return ops.linear(normed, self._weights.head)

    def _block(
        self, layer: int, hidden: torch.Tensor, delta: torch.Tensor | None, plan: RowPlan, cache: PagedCache
    ) -> torch.Tensor:
        """Adds `delta` and the attention to the residual stream; returns the MLP's output, still to be added."""
        weights = self._weights.layers[layer]
        normed = ops.rms_norm(hidden, delta, weights.attention_norm, self._eps, self._dtype)
        queries = ops.rotate_and_store(ops.linear(normed, weights.qkv), plan, cache, layer)
        attended = ops.linear(ops.attend(queries, plan, cache, layer), weights.attention_out)
        normed = ops.rms_norm(hidden, attended, weights.mlp_norm, self._eps, self._dtype)
        return ops.linear(ops.swiglu(ops.linear(normed, weights.gate_up)), weights.down)
