"""Settings as every command and the client use them: all layers, and below them the local stack that runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from headrace.local.endpoints import Endpoints, read_endpoints
from runtime.config import LoadedSettings, fill_unset, load_settings
from schemas.settings import Settings


def resolve_settings(
    config_file: Path | None = None, env: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> LoadedSettings:
    """Load all layers; where no broker or no storage is set, those of the running local stack are used.

    Raises:
        SettingsError: see `runtime.config.load_settings`.
        LocalStackError: the local stack's file cannot be read.
    """
    loaded = load_settings(config_file, os.environ if env is None else env, overrides)
    settings = loaded.settings
    if settings.kafka.bootstrap_servers and settings.storage.endpoint:
        return loaded
    data_dir = local_data_dir(settings)
    endpoints = read_endpoints(data_dir)
    return loaded if endpoints is None else use_endpoints(loaded, endpoints, source=f"local stack in {data_dir}")


def use_endpoints(loaded: LoadedSettings, endpoints: Endpoints, *, source: str) -> LoadedSettings:
    """Point what is not set at a local stack. Its keys go with its endpoint: never to another one."""
    values = {"kafka.bootstrap_servers": endpoints.bootstrap_servers}
    if not loaded.settings.storage.endpoint:
        values |= {
            "storage.endpoint": endpoints.s3_endpoint,
            "storage.bucket": endpoints.bucket,
            "storage.access_key": endpoints.access_key,
            "storage.secret_key": endpoints.secret_key,
        }
    return fill_unset(loaded, values, source)


def local_data_dir(settings: Settings) -> Path:
    """Where the local stack keeps its data, on Linux ~/.local/share/headrace unless set."""
    chosen = settings.local.data_dir
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_data_path("headrace")


def local_cache_dir(settings: Settings) -> Path:
    """Where downloads are kept, on Linux ~/.cache/headrace unless set."""
    chosen = settings.local.cache_dir
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("headrace")
