import subprocess
import sys

import pytest

from pipeline.role import PipelineRole
from schemas.errors import SettingsError
from schemas.settings import DEFAULT_MODEL, KafkaSettings, ModelSettings, Settings, StorageSettings

STORAGE = StorageSettings(endpoint="127.0.0.1:1", access_key="a", secret_key="b")
NO_MODEL = {DEFAULT_MODEL: ModelSettings(path="none.gguf")}


def test_the_role_is_imported_without_what_only_its_work_needs() -> None:
    heavy = "{'faust', 'mode', 'tokenizers', 'jinja2', 'numpy', 'torch'}"
    code = f"import sys, pipeline.role; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1")), r"storage\.endpoint"),
        (
            Settings(storage=STORAGE, models=NO_MODEL),
            r"kafka\.bootstrap_servers",
        ),
    ],
)
async def test_a_start_without_broker_or_storage_says_what_to_set(settings: Settings, missing: str) -> None:
    role = PipelineRole(settings)
    with pytest.raises(SettingsError, match=missing):
        await role.start()
    assert not role.health().is_ready


async def test_a_role_that_was_never_started_stops_at_once() -> None:
    role = PipelineRole(Settings())
    assert role.health().detail == "starting"
    await role.stop()
