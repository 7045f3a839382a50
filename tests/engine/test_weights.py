"""Weights come out of a file as its format defines them, in the order that the kernels want."""

import math
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.weights import load_weights
from kernels import ops
from models.catalog import open_model
from models.gguf import GGUFFile
from models.spec import ModelSpec
from schemas.errors import InvalidValue, ModelFileError
from tests.engine.tiny import run, tiny_request, tokens
from tests.models.gguf_writer import write_gguf

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB_SIZE = 64, 96, 4, 2, 16, 264

Tensors = dict[str, np.ndarray]


def tensors() -> Tensors:
    """All tensors of the writer's tiny model, with a head of its own."""
    numbers = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return numbers.normal(size=shape, scale=shape[-1] ** -0.5).astype(np.float32)

    found: Tensors = {
        "token_embd.weight": random(VOCAB_SIZE, HIDDEN),
        "output.weight": random(VOCAB_SIZE, HIDDEN),
        "output_norm.weight": random(HIDDEN),
    }
    for layer in range(2):
        shapes = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }
        found |= {f"blk.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}
    return found


def spec_of(path: Path) -> ModelSpec:
    return ModelSpec.from_gguf("tiny", GGUFFile.open(path))


def test_every_tensor_arrives_where_it_belongs(tmp_path: Path) -> None:
    source = tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors=source)
    weights = load_weights(path, spec_of(path), torch.float32, vocab_size=VOCAB_SIZE, num_threads=2)
    x = torch.randn(3, HIDDEN)
    wide = torch.randn(3, INTERMEDIATE)
    value = torch.from_numpy(source["blk.1.attn_v.weight"])
    layer = weights.layers[1]
    assert torch.allclose(ops.linear(x, layer.qkv)[:, -KV_HEADS * HEAD_DIM :], x @ value.T, atol=1e-5)
    gate, up = (torch.from_numpy(source[f"blk.1.ffn_{part}.weight"]) for part in ("gate", "up"))
    assert torch.allclose(ops.linear(x, layer.gate_up), x @ torch.cat((gate, up)).T, atol=1e-5)
    down = torch.from_numpy(source["blk.1.ffn_down.weight"])
    assert torch.allclose(ops.linear(wide, layer.down), wide @ down.T, atol=1e-5)
    head = torch.from_numpy(source["output.weight"])
    assert torch.allclose(ops.linear(x, weights.head), x @ head.T, atol=1e-5)
    for name, tensor in (
        ("token_embd", weights.embedding),
        ("output_norm", weights.final_norm),
        ("blk.0.attn_norm", weights.layers[0].attention_norm),
        ("blk.0.ffn_norm", weights.layers[0].mlp_norm),
    ):
        assert torch.equal(tensor, torch.from_numpy(source[f"{name}.weight"]))


def test_turning_halves_gives_the_scores_that_turning_neighbours_gives(tmp_path: Path) -> None:
    """The file's order turns (2i, 2i + 1), ours (i, i + head_dim / 2): every query meets every key as before."""
    source = tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors=source)
    weights = load_weights(path, spec_of(path), torch.float32, vocab_size=VOCAB_SIZE, num_threads=1)
    x = torch.randn(7, HIDDEN)
    table = ops.rotary_table(7, HEAD_DIM, 10_000.0)
    heads = ops.linear(x, weights.layers[0].qkv).view(7, -1, HEAD_DIM)
    halves = heads * table.cos[:, None] + torch.roll(heads, HEAD_DIM // 2, -1) * table.sin[:, None]
    angles = torch.arange(7)[:, None] * 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    for name, first, count in (("q", 0, HEADS), ("k", HEADS, KV_HEADS)):
        plain = (x @ torch.from_numpy(source[f"blk.0.attn_{name}.weight"]).T).view(7, count, HEAD_DIM // 2, 2)
        neighbours = torch.view_as_real(torch.view_as_complex(plain.contiguous()) * turns).flatten(2)
        mine = halves[:, first : first + count]
        for head in range(count):
            expected = neighbours[:, head] @ neighbours[:, head].T
            assert torch.allclose(mine[:, head] @ mine[:, head].T, expected, atol=1e-4)


def test_quantised_tensors_are_what_the_format_says(tmp_path: Path) -> None:
    source = tensors()
    path = write_gguf(tmp_path / "plain.gguf", tensors=source)
    writer = gguf.GGUFWriter(tmp_path / "q8.gguf", "llama")
    quantised = gguf.quantize(source["blk.0.ffn_gate.weight"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_gate.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    exact = gguf.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
    read = GGUFFile.open(tmp_path / "q8.gguf").tensor_bytes("blk.0.ffn_gate.weight")
    assert np.array_equal(gguf.dequantize(read.reshape(INTERMEDIATE, -1), gguf.GGMLQuantizationType.Q8_0), exact)
    weights = load_weights(path, spec_of(path), torch.float32, vocab_size=VOCAB_SIZE, num_threads=1)
    x = torch.randn(2, HIDDEN)
    difference = ops.linear(x, weights.layers[0].gate_up)[:, :INTERMEDIATE] - x @ torch.from_numpy(exact).T
    assert 0 < difference.abs().max() < 0.1


def test_a_padded_vocabulary_gives_no_token_that_the_tokenizer_does_not_know(tmp_path: Path) -> None:
    """The file has rows for 264 tokens, its tokenizer 261: the rest is made to win, and does not."""
    source = tensors()
    source["output.weight"][261:] *= 1000
    model = open_model("tiny", str(write_gguf(tmp_path / "m.gguf", tensors=source)))
    engine = Engine.load(model, EngineConfig(kv_bytes=1 << 20, num_threads=1))
    requests = [
        tiny_request(f"r{i}", [i], max_tokens=20, temperature=float(i % 3), seed=i, top_logprobs=20) for i in range(9)
    ]
    outputs = run(engine, requests)
    assert all(token_id < 261 for output in outputs for token_id in output.token_ids)
    assert all(i < 261 for output in outputs for p in output.logprobs or [] for i, _ in p.top)
    with pytest.raises(InvalidValue, match="261"):
        engine.add(tiny_request("r", "a", logit_bias={261: 1.0}))


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    source = tensors()
    incomplete = {name: data for name, data in source.items() if name != "blk.1.ffn_up.weight"}
    path = write_gguf(tmp_path / "a.gguf", tensors=incomplete)
    with pytest.raises(ModelFileError, match=r"no tensor 'blk\.1\.ffn_up\.weight'"):
        load_weights(path, spec_of(path), torch.float32, vocab_size=VOCAB_SIZE, num_threads=1)
    path = write_gguf(tmp_path / "b.gguf", tensors=source | {"blk.1.ffn_up.weight": np.zeros((8, 64), np.float32)})
    with pytest.raises(ModelFileError, match=r"'blk\.1\.ffn_up\.weight' is \[8, 64\], the metadata say \[96, 64\]"):
        load_weights(path, spec_of(path), torch.float32, vocab_size=VOCAB_SIZE, num_threads=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_an_engine_loads_from_a_file_and_runs(
    tmp_path: Path, dtype: Literal["float32", "bfloat16"], *, is_tied: bool
) -> None:
    source = tensors()
    if is_tied:
        del source["output.weight"]
    path = write_gguf(tmp_path / "m.gguf", tensors=source)
    config = EngineConfig(dtype=dtype, kv_bytes=1 << 20, num_threads=1)
    engine = Engine.load(open_model("tiny", str(path)), config)
    assert engine.stats().kv_blocks_total < (1 << 20) / (2 * 2 * KV_HEADS * HEAD_DIM * 16 * 2)
    request = tiny_request("r", [5, 6, 7] * 9, max_tokens=5, ignore_eos=True)
    first, second = tokens(run(engine, [request]), "r"), run(engine, [request])
    assert first == tokens(second, "r")
    assert len(first) == 5
    assert second[0].num_cached_tokens == 16
    assert math.isclose(engine.stats().num_generated_tokens, 10)
