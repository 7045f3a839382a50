"""Settings are checked once, by name, and "auto" means what the processor can do."""

import os
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.loading import num_blocks
from engine.proposer import make_proposer
from engine.sequence import Sequence
from kernels import paging
from kernels.cpu import features
from kernels.cpu.threads import available_cores
from kernels.paging import KVShape
from models import kv_keys
from schemas.errors import SettingsError
from schemas.settings import EngineSettings
from tests.engine.tiny import tiny_request


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv_bytes": 0}, "engine.kv_bytes must be at least 1"),
        ({"max_running": 0}, "engine.max_running"),
        ({"max_tokens_per_step": -3}, "engine.max_tokens_per_step"),
        ({"num_threads": 0}, "engine.num_threads"),
        ({"dtype": "float16"}, "engine.dtype must be auto, float32 or bfloat16"),
        ({"max_running": 9, "max_tokens_per_step": 8}, "Raise the first or lower the second"),
        ({"proposer": "oracle"}, "engine.proposer must be none or ngram"),
        ({"num_speculative_tokens": 0}, "engine.num_speculative_tokens must be at least 1"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "no run of tokens is both"),
    ],
)
def test_a_setting_that_cannot_work_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EngineConfig(**fields)


def test_the_settings_section_becomes_a_config() -> None:
    settings = EngineSettings(dtype="float32", kv_bytes=5_000_000, max_running=3, num_threads=1)
    config = EngineConfig.from_settings(settings)
    assert (config.dtype, config.kv_bytes, config.max_running, config.threads) == ("float32", 5_000_000, 3, 1)
    assert EngineConfig.from_settings(EngineSettings()) == EngineConfig()


@pytest.mark.parametrize(("fast", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_it_is_fast(
    monkeypatch: pytest.MonkeyPatch, expected: torch.dtype, *, fast: bool
) -> None:
    monkeypatch.setattr(features, "cpu_flags", lambda: frozenset({"avx512_bf16"} if fast else {"avx2"}))
    assert EngineConfig().torch_dtype is expected
    assert EngineConfig(dtype="float32").torch_dtype is torch.float32


def test_threads_are_those_told_or_the_cores_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert EngineConfig().threads == available_cores() <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert EngineConfig().threads == 3
    assert EngineConfig(num_threads=2).threads == 2


def test_the_kv_cap_is_hard() -> None:
    shape = KVShape(num_layers=2, num_kv_heads=2, head_dim=16, dtype=torch.float32)
    block = shape.block_bytes
    assert num_blocks(shape, 10 * block) == 9  # one more holds zeros
    assert num_blocks(shape, 10 * block - 1) == 8
    with pytest.raises(SettingsError, match=f"needs at least {2 * block}"):
        num_blocks(shape, 2 * block - 1)


def test_blocks_are_the_same_for_keys_and_kernels() -> None:
    """Two folders that may not import each other count in the same unit."""
    assert paging.BLOCK_SIZE == kv_keys.BLOCK_SIZE


def test_drafts_are_off_unless_asked_for() -> None:
    assert make_proposer(EngineConfig()) is None
    config = EngineConfig.from_settings(EngineSettings(proposer="ngram", num_speculative_tokens=2))
    proposer = make_proposer(config)
    assert proposer is not None
    repeating = Sequence(0, tiny_request("r", "abcabcabc"), 0, arrival_s=0.0)
    assert proposer.propose(repeating, 9) == list(b"ab")
    assert proposer.propose(repeating, 1) == list(b"a")
