"""Weights from a GGUF file, dequantised exactly and packed for the kernels, several layers at once."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch

from kernels import ops
from kernels.cpu.linear import PackedLinear
from models.gguf import GGUFFile
from models.spec import ModelSpec
from schemas.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block of the llama family. Norms are float32 `[hidden_size]`."""

    attention_norm: torch.Tensor
    qkv: PackedLinear
    attention_out: PackedLinear
    mlp_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights. `embedding` is `[spec.vocab_size, hidden_size]` in the engine's dtype.

    The head is float32 always: a logit of 20 rounded to bfloat16 is off by up to 0.06, which makes ties of what were
    none. That was most of what bfloat16 costs (KL to float32 0.0008, without it 0.0003).
    """

    embedding: torch.Tensor
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    head: PackedLinear


@dataclass(frozen=True, slots=True)
class _Reader:
    """Tensors of an open file."""

    file: GGUFFile
    dtype: torch.dtype

    def exact(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor in float32, as the file's format defines it."""
        info = self.file.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.file.path} has no tensor {name!r}: it is no complete llama model.")
        if info.shape != shape:
            stated = f"tensor {name!r} is {list(info.shape)}, the metadata say {list(shape)}"
            raise ModelFileError(f"{self.file.path}: {stated}.")
        rows = self.file.tensor_bytes(name).reshape(math.prod(shape[:-1]), -1)
        values = gguf.dequantize(rows, gguf.GGMLQuantizationType(int(info.ggml_type)))
        # What is not quantised comes back as a view of the file, which must not stay mapped.
        owned = values if values.flags.writeable else values.copy()
        return torch.from_numpy(owned).view(shape)

    def rounded(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor in the engine's dtype."""
        return self.exact(name, *shape).to(self.dtype)


def load_weights(path: Path, spec: ModelSpec, dtype: torch.dtype, *, vocab_size: int, num_threads: int) -> ModelWeights:
    """Read and pack a model's weights; ModelFileError if one is missing or has another shape than the spec says.

    Some files pad the vocabulary: the head keeps the `vocab_size` tokens that the tokenizer knows, so that no other can
    ever be chosen.
    """
    reader = _Reader(GGUFFile.open(path), dtype)
    with ThreadPoolExecutor(num_threads) as pool:
        layers = [pool.submit(_load_layer, reader, f"blk.{index}", spec) for index in range(spec.num_layers)]
        embedding = reader.exact("token_embd.weight", spec.vocab_size, spec.hidden_size)
        head = embedding if spec.tie_embeddings else reader.exact("output.weight", *embedding.shape)
        return ModelWeights(
            embedding=embedding.to(dtype),
            head=ops.pack_linear(head[:vocab_size]),
            final_norm=reader.exact("output_norm.weight", spec.hidden_size),
            layers=[layer.result() for layer in layers],
        )


def _load_layer(reader: _Reader, prefix: str, spec: ModelSpec) -> LayerWeights:
    hidden, heads, kv_heads = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    query = _half_split(reader.rounded(f"{prefix}.attn_q.weight", heads, hidden), spec.num_heads)
    key = _half_split(reader.rounded(f"{prefix}.attn_k.weight", kv_heads, hidden), spec.num_kv_heads)
    value = reader.rounded(f"{prefix}.attn_v.weight", kv_heads, hidden)
    gate_up = [reader.rounded(f"{prefix}.ffn_{part}.weight", spec.intermediate_size, hidden) for part in ("gate", "up")]
    return LayerWeights(
        attention_norm=reader.exact(f"{prefix}.attn_norm.weight", hidden),
        qkv=ops.pack_linear(torch.cat((query, key, value))),
        attention_out=ops.pack_linear(reader.rounded(f"{prefix}.attn_output.weight", hidden, heads)),
        mlp_norm=reader.exact(f"{prefix}.ffn_norm.weight", hidden),
        gate_up=ops.pack_linear(torch.cat(gate_up)),
        down=ops.pack_linear(reader.rounded(f"{prefix}.ffn_down.weight", hidden, spec.intermediate_size)),
    )


def _half_split(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp stores the pairs that RoPE turns side by side; we turn (i, i + head_dim / 2), as transformers does."""
    out_features, in_features = weight.shape
    pairs = weight.view(num_heads, out_features // num_heads // 2, 2, in_features)
    return pairs.transpose(1, 2).reshape(out_features, in_features)
