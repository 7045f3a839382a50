"""Writes small GGUF files with the format's own package, so that our reader is tested against another's writer."""

import contextlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BYTES = "".join(chr(c) for c in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(256, 324)])

METADATA: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*BYTES, "<|im_start|>", "<|im_end|>", "<think>", "he", "hel"],
    "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 4, 1, 1],
    "tokenizer.ggml.merges": ["h e", "he l"],
    "tokenizer.ggml.bos_token_id": 256,
    "tokenizer.ggml.eos_token_id": 257,
    "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}",
}

EMBEDDING = {"token_embd.weight": np.zeros((264, 64), dtype=np.float32)}


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] = EMBEDDING,
    **changes: Any,
) -> Path:
    """A tiny model's file. `changes` replace metadata (dots written as two underscores); None leaves an entry out."""
    metadata = METADATA | {key.replace("__", "."): value for key, value in changes.items()}
    with contextlib.closing(gguf.GGUFWriter(path, architecture)) as writer:
        for key, value in metadata.items():
            add_value(writer, key, value)
        for name, data in tensors.items():
            writer.add_tensor(name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
