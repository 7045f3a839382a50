"""The engine's settings, checked once at the start, and what "auto" means on this machine."""

import os
from typing import Literal

import msgspec
import torch

from kernels.cpu.features import has_fast_bfloat16
from kernels.cpu.threads import available_cores
from schemas.errors import SettingsError
from schemas.settings import EngineSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROPOSERS = ("none", "ngram")

_POSITIVE = (
    "kv_bytes",
    "max_running",
    "max_tokens_per_step",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine runs.

    `kv_bytes` is a hard cap on the memory of keys and values. A step computes at most `max_tokens_per_step` tokens, of
    which each running sequence gets at least one: longer prompts are computed in chunks.

    `proposer` "ngram" drafts up to `num_speculative_tokens` tokens for each sequence from the last time that its latest
    `prompt_lookup_max` tokens, or fewer down to `prompt_lookup_min`, occurred in it. Outputs are the same without.
    """

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_bytes: int = 1 << 30
    max_running: int = 64
    max_tokens_per_step: int = 512
    num_threads: int | None = None
    prefix_cache: bool = True
    proposer: Literal["none", "ngram"] = "none"
    num_speculative_tokens: int = 7
    prompt_lookup_min: int = 3
    prompt_lookup_max: int = 4

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise SettingsError(f"engine.{name} must be at least 1, not {getattr(self, name)}.")
        if self.num_threads is not None and self.num_threads < 1:
            raise SettingsError(f"engine.num_threads must be at least 1, not {self.num_threads}.")
        if self.dtype not in ("auto", *DTYPES):
            raise SettingsError(f"engine.dtype must be auto, {' or '.join(DTYPES)}, not {self.dtype!r}.")
        if self.proposer not in PROPOSERS:
            raise SettingsError(f"engine.proposer must be {' or '.join(PROPOSERS)}, not {self.proposer!r}.")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise SettingsError(
                f"engine.prompt_lookup_max ({self.prompt_lookup_max}) is below engine.prompt_lookup_min "
                f"({self.prompt_lookup_min}): no run of tokens is both. Raise the first or lower the second."
            )
        if self.max_tokens_per_step < self.max_running:
            raise SettingsError(
                f"engine.max_tokens_per_step ({self.max_tokens_per_step}) is below engine.max_running "
                f"({self.max_running}): a running sequence would not get its token each step. Raise the first or "
                "lower the second."
            )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "EngineConfig":
        """The section `engine` of the settings."""
        return cls(**msgspec.structs.asdict(settings))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights, activations and KV; auto is bfloat16 where the processor multiplies it in hardware."""
        if self.dtype == "auto":
            return torch.bfloat16 if has_fast_bfloat16() else torch.float32
        return DTYPES[self.dtype]

    @property
    def threads(self) -> int:
        """Threads inside one operation: as told, else OMP_NUM_THREADS, else all cores that this process may use."""
        return self.num_threads or _environment_threads() or available_cores()


def _environment_threads() -> int | None:
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None
