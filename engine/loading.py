"""From a model file and settings to an executor that is ready to run."""

import logging
import time

import torch

from engine.config import EngineConfig
from engine.executor import LocalExecutor
from engine.model_llama import LlamaModel
from engine.weights import load_weights
from kernels.cpu.threads import set_num_threads
from kernels.paging import KVShape, PagedCache
from models.catalog import LoadedModel
from schemas.errors import SettingsError

log = logging.getLogger(__name__)

CPU = torch.device("cpu")


def load_executor(model: LoadedModel, config: EngineConfig) -> LocalExecutor:
    """Read and pack the weights, and reserve the KV memory."""
    started_s = time.monotonic()
    set_num_threads(config.threads)
    weights = load_weights(
        model.path,
        model.spec,
        config.torch_dtype,
        vocab_size=model.tokenizer.vocab_size,
        num_threads=config.threads,
    )
    llama = LlamaModel(model.spec, weights)
    cache = PagedCache(llama.kv_shape, num_blocks(llama.kv_shape, config.kv_bytes), CPU)
    log.info(
        "Loaded %s as %s in %.1f s: %d KV blocks, %d threads.",
        model.name, config.torch_dtype, time.monotonic() - started_s, cache.num_blocks, config.threads,
    )  # fmt: skip
    return LocalExecutor(llama, cache, eos_token_ids=model.spec.eos_token_ids, num_threads=config.threads)


def num_blocks(shape: KVShape, kv_bytes: int) -> int:
    """Blocks that fit under the cap, the block of zeros counted; SettingsError if none does."""
    blocks = kv_bytes // shape.block_bytes - 1
    if blocks < 1:
        raise SettingsError(
            f"engine.kv_bytes ({kv_bytes}) holds no KV block: this model needs at least {2 * shape.block_bytes}."
        )
    return blocks
