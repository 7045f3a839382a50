"""The topic registry: which topics exist, what they hold, how they are keyed and kept."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from schemas.names import LANES, Names
from schemas.settings import TopicsSettings

Format = Literal["json", "msgpack"]

_MS_PER_HOUR = 3_600_000


class TopicSpec(msgspec.Struct, kw_only=True, frozen=True):
    """One topic as it must be on the broker."""

    name: str
    key: str
    format: Format
    holds: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]

    @property
    def is_compacted(self) -> bool:
        """Whether the newest record of each key is kept for ever."""
        return self.configs["cleanup.policy"] == "compact"


def registry(names: Names, topics: TopicsSettings, models: Iterable[str]) -> list[TopicSpec]:
    """All topics of a namespace. Only `batches.<model>` grows, by one pair a served model."""

    def spec(name: str, key: str, format_: Format, holds: str, configs: dict[str, str]) -> TopicSpec:
        return TopicSpec(
            name=name,
            key=key,
            format=format_,
            holds=holds,
            partitions=topics.partitions,
            replication_factor=topics.replication_factor,
            # Broker time is the only time: for retention, deadlines and reading by time.
            configs={
                "message.timestamp.type": "LogAppendTime",
                "min.insync.replicas": str(topics.min_insync_replicas),
                **configs,
            },
        )

    path = _kept(topics.retention_hours)
    key = "session id, else request id"
    found = []
    for lane in LANES:
        found += [
            spec(names.requests(lane), key, "json", f"requests of clients, {lane}", path),
            spec(names.turns(lane), key, "msgpack", f"admitted requests, {lane}", path),
            spec(names.refusals(lane), key, "msgpack", f"refusals without a model, {lane}", path),
        ]
        found += [
            spec(names.batches(model, lane), key, "msgpack", f"token ids for {model}, {lane}", path)
            for model in sorted(models)
        ]
    return [
        *found,
        spec(names.tokens, key, "json", "token deltas and marks: the journal", path),
        spec(names.results, key, "json", "one terminal record a request", path),
        spec(names.sessions, "tenant/session", "json", "session states and parked turns", _compacted()),
        spec(names.control, key, "json", "cancellations", path),
        spec(names.models, "model", "json", "models that are served", _compacted()),
        spec(names.dead_letters, "original key", "json", "reproduction bundles", _kept(topics.dead_letter_hours)),
    ]


def _kept(hours: float) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(int(hours * _MS_PER_HOUR))}


def _compacted() -> dict[str, str]:
    # A day of tombstones: a reader that was away for less still sees what was deleted.
    return {"cleanup.policy": "compact", "delete.retention.ms": str(24 * _MS_PER_HOUR)}
