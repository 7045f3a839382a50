"""From a model file and settings to an executor that is ready to run."""

import logging
import time

import torch

from engine.config import EngineConfig
from engine.executor import LocalExecutor
from engine.kv.manager import MakeChain
from engine.model_llama import LlamaModel
from engine.structured.structures import Structures
from engine.weights import load_weights
from kernels.cpu.threads import set_num_threads
from kernels.paging import LAYOUT, KVShape, PagedCache
from models.catalog import LoadedModel
from models.kv_keys import BlockKeyChain
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
    structures = Structures(model.tokenizer, num_threads=config.threads)
    return LocalExecutor(llama, cache, structures, eos_token_ids=model.spec.eos_token_ids, num_threads=config.threads)


def chain_maker(model: LoadedModel, config: EngineConfig) -> MakeChain | None:
    """What starts a tenant's chain of block keys; None if the settings turn the prefix cache off."""
    hashes, dtype = model.hashes, str(config.torch_dtype).removeprefix("torch.")

    def make_chain(tenant: str) -> BlockKeyChain:
        return BlockKeyChain(model_hash=hashes.model, kv_dtype=dtype, layout=LAYOUT, salt=tenant)

    return make_chain if config.prefix_cache else None


def num_blocks(shape: KVShape, kv_bytes: int) -> int:
    """Blocks that fit under the cap, the block of zeros counted; SettingsError if none does."""
    blocks = kv_bytes // shape.block_bytes - 1
    if blocks < 1:
        raise SettingsError(
            f"engine.kv_bytes ({kv_bytes}) holds no KV block: this model needs at least {2 * shape.block_bytes}."
        )
    return blocks
