"""What the checks judge by: the settings, where they came from, and how strict to be."""

from dataclasses import dataclass
from pathlib import Path

from headrace.settings import local_cache_dir, local_data_dir
from runtime.config import DEFAULT, LoadedSettings
from schemas.settings import SECRET_SETTINGS, Settings

# What survives the loss of one broker without losing a record, and still takes writes.
PRODUCTION_REPLICATION = 3
PRODUCTION_MIN_INSYNC = 2


@dataclass(frozen=True)
class Situation:
    """The settings in force. `is_dev`: the user said that this is no production."""

    loaded: LoadedSettings
    is_dev: bool = False

    @property
    def settings(self) -> Settings:
        """All settings."""
        return self.loaded.settings

    @property
    def data_dir(self) -> Path:
        """Where the local stack keeps its data."""
        return local_data_dir(self.settings)

    @property
    def cache_dir(self) -> Path:
        """Where downloads are kept."""
        return local_cache_dir(self.settings)

    @property
    def is_local_broker(self) -> bool:
        """Whether the broker is that of a running local stack, which has one broker by design."""
        return self._source.startswith("local stack")

    @property
    def needs_local_stack(self) -> bool:
        """Whether Kafka runs, or would run, on this machine: then it needs Java here."""
        return self.is_local_broker or self._source == DEFAULT

    @property
    def min_replication(self) -> int:
        """Replicas that a topic must have."""
        wanted = self.settings.topics.replication_factor
        return wanted if self.is_dev else max(PRODUCTION_REPLICATION, wanted)

    @property
    def min_insync(self) -> int:
        """Replicas that a write must reach."""
        wanted = self.settings.topics.min_insync_replicas
        return wanted if self.is_dev else max(PRODUCTION_MIN_INSYNC, wanted)

    @property
    def secrets(self) -> list[str]:
        """Values that may be shown nowhere."""
        values = [
            getattr(getattr(self.settings, section), key)
            for section, _, key in (name.partition(".") for name in SECRET_SETTINGS)
        ]
        return [value for value in values if value]

    @property
    def _source(self) -> str:
        return self.loaded.sources.get("kafka.bootstrap_servers", DEFAULT)
