"""Settings of a worker of the tiny model on the tests' broker."""

from typing import Any

from headrace.local.background import BackgroundStack
from schemas.settings import (
    EngineSettings,
    KafkaSettings,
    LoggingSettings,
    ModelSettings,
    Settings,
    TopicsSettings,
    WorkerSettings,
)
from tests.consumers.worker.tiny_model import MODEL_NAME, TinyModel

NUM_PARTITIONS = 2


def worker_settings(stack: BackgroundStack, namespace: str, model: TinyModel, **worker: Any) -> Settings:
    """One thread and float32, so that processes that run side by side are quick and say the same."""
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=6_000),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=NUM_PARTITIONS),
        models={MODEL_NAME: ModelSettings(path=str(model.path))},
        worker=WorkerSettings(model=MODEL_NAME, **worker),
        engine=EngineSettings(dtype="float32", kv_bytes=64 << 20, num_threads=1),
        logging=LoggingSettings(format="json"),
    )
