"""Weights from a GGUF file, dequantised exactly and packed for the kernels, several layers at once."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
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
    """All weights. `embedding` is `[vocab_size, hidden_size]` in the engine's dtype."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    head: PackedLinear


ReadTensor = Callable[[str, tuple[int, ...]], torch.Tensor]


def load_weights(path: Path, spec: ModelSpec, dtype: torch.dtype, num_threads: int) -> ModelWeights:
    """Read and pack a model's weights; ModelFileError if one is missing or has another shape than the spec says."""
    file = GGUFFile.open(path)

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return _read_tensor(file, name, shape)

    with ThreadPoolExecutor(num_threads) as pool:
        layers = list(pool.map(lambda index: _load_layer(read, f"blk.{index}", spec, dtype), range(spec.num_layers)))
    embedding = read("token_embd.weight", (spec.vocab_size, spec.hidden_size)).to(dtype)
    head = embedding if spec.tie_embeddings else read("output.weight", tuple(embedding.shape)).to(dtype)
    return ModelWeights(
        embedding=embedding,
        layers=layers,
        final_norm=read("output_norm.weight", (spec.hidden_size,)),
        head=ops.pack_linear(head),
    )


def _load_layer(read: ReadTensor, prefix: str, spec: ModelSpec, dtype: torch.dtype) -> LayerWeights:
    hidden, heads, kv_heads = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    query = _half_split(read(f"{prefix}.attn_q.weight", (heads, hidden)), spec.num_heads)
    key = _half_split(read(f"{prefix}.attn_k.weight", (kv_heads, hidden)), spec.num_kv_heads)
    value = read(f"{prefix}.attn_v.weight", (kv_heads, hidden))
    gate_up = [read(f"{prefix}.ffn_{part}.weight", (spec.intermediate_size, hidden)) for part in ("gate", "up")]
    return LayerWeights(
        attention_norm=read(f"{prefix}.attn_norm.weight", (hidden,)),
        qkv=ops.pack_linear(torch.cat((query, key, value)).to(dtype)),
        attention_out=ops.pack_linear(read(f"{prefix}.attn_output.weight", (hidden, heads)).to(dtype)),
        mlp_norm=read(f"{prefix}.ffn_norm.weight", (hidden,)),
        gate_up=ops.pack_linear(torch.cat(gate_up).to(dtype)),
        down=ops.pack_linear(read(f"{prefix}.ffn_down.weight", (hidden, spec.intermediate_size)).to(dtype)),
    )


def _read_tensor(file: GGUFFile, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor as float32."""
    info = file.tensors.get(name)
    if info is None:
        raise ModelFileError(f"{file.path} has no tensor {name!r}: it is no complete llama model.")
    if info.shape != shape:
        raise ModelFileError(f"{file.path}: tensor {name!r} is {list(info.shape)}, the metadata say {list(shape)}.")
    rows = math.prod(shape[:-1])
    kind = gguf.GGMLQuantizationType(int(info.ggml_type))
    values = gguf.dequantize(file.tensor_bytes(name).reshape(rows, -1), kind)
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))


def _half_split(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp stores the pairs that RoPE turns side by side; we turn (i, i + head_dim / 2), as transformers does."""
    out_features, in_features = weight.shape
    pairs = weight.view(num_heads, out_features // num_heads // 2, 2, in_features)
    return pairs.transpose(1, 2).reshape(out_features, in_features)
