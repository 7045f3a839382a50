"""The engine of a worker and what is announced of it: loaded once, outside the event loop."""

import dataclasses

import msgspec

from engine.config import EngineConfig
from engine.engine import Engine
from engine.thread import EngineThread
from models.catalog import LoadedModel, open_model
from models.kv_keys import BLOCK_SIZE
from schemas.control import ModelAnnouncement
from schemas.envelope import ModelHashes
from schemas.errors import SettingsError
from schemas.settings import ModelSettings, Settings

DEVICE = "cpu"


@dataclasses.dataclass(frozen=True, slots=True)
class HostedModel:
    """A model whose engine can be started. `num_kv_tokens` is how many tokens its KV cache holds."""

    engine: EngineThread
    hashes: ModelHashes
    context_length: int
    num_kv_tokens: int
    dtype: str

    def announcement(self, settings: Settings, worker: str) -> ModelAnnouncement:
        """What others may know of it."""
        return ModelAnnouncement(
            model=settings.worker.model,
            hashes=self.hashes,
            context_length=self.context_length,
            worker=worker,
            max_running=settings.engine.max_running,
            num_kv_tokens=self.num_kv_tokens,
            dtype=self.dtype,
            device=DEVICE,
        )


def load_model(settings: Settings) -> HostedModel:
    """Open the model that the settings name and load its weights. Takes seconds: to be called in a thread.

    Raises:
        SettingsError: no such model is configured, or the engine's settings do not fit it.
        ModelFileError: its file is missing, damaged or unsupported.
    """
    model = open_served(settings)
    config = EngineConfig.from_settings(settings.engine)
    engine = Engine.load(model, config)
    return HostedModel(
        engine=EngineThread(engine),
        hashes=model.hashes,
        context_length=model.spec.context_length,
        num_kv_tokens=engine.stats().kv_blocks_total * BLOCK_SIZE,
        dtype=str(config.torch_dtype).removeprefix("torch."),
    )


def open_served(settings: Settings) -> LoadedModel:
    """The model that the settings name, without its weights, with the context that they allow. Raises as above."""
    chosen = model_settings(settings)
    return _limited(open_model(settings.worker.model, chosen.path), chosen)


def model_settings(settings: Settings) -> ModelSettings:
    """The settings of the model that this worker serves.

    Raises:
        SettingsError: no such model is configured.
    """
    try:
        return settings.models[settings.worker.model]
    except KeyError:
        known = ", ".join(sorted(settings.models)) or "none"
        raise SettingsError(f"worker.model {settings.worker.model!r} is not in models; there is: {known}") from None


def _limited(model: LoadedModel, chosen: ModelSettings) -> LoadedModel:
    """The model with the context that the settings allow, if they allow less than the file."""
    if chosen.context_length is None or chosen.context_length >= model.spec.context_length:
        return model
    spec = msgspec.structs.replace(model.spec, context_length=chosen.context_length)
    return dataclasses.replace(model, spec=spec)
