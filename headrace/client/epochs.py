"""Which takeover of each source was in force where a reader begins, so that it knows a late worker's deltas for void.

The newest one is in the metadata of the worker group's commits; each takeover names the one before it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from consumers.worker.takeover import decode_checkpoint
from headrace.client.scout import Scout
from headrace.groups import RoleGroup, worker_groups
from runtime.broker import broker_errors
from schemas.codec import JOURNAL
from schemas.errors import MalformedRecord
from schemas.names import Names
from schemas.settings import KafkaSettings
from schemas.tokens import Takeover


class EpochBook:
    """Looks up the epochs of the workers of the models that the settings name, over a connected admin client."""

    def __init__(self, admin: Any, kafka: KafkaSettings, names: Names, models: Iterable[str], scout: Scout) -> None:
        self._admin = admin
        self._kafka = kafka
        self._names = names
        self._groups = worker_groups(names, models)
        self._scout = scout
        self._coordinators: dict[str, int] = {}

    async def at(self, partition: int, tokens_offset: int) -> dict[str, int]:
        """The epoch of each source ("topic-partition") at an offset of `tokens`. Sources without one are left out."""
        epochs: dict[str, int] = {}
        for group in self._groups:
            for source, newest in (await self._newest(group, partition)).items():
                epoch = await self._at_or_before(partition, newest, tokens_offset)
                if epoch is not None:
                    epochs[source] = max(epoch, epochs.get(source, epoch))
        return epochs

    async def _newest(self, group: RoleGroup, partition: int) -> dict[str, int]:
        metadata = await self._metadata(group.name, group.topics, partition)
        checkpoints = {topic: decode_checkpoint(text) for topic, text in metadata.items()}
        return {f"{topic}-{partition}": found.epoch for topic, found in checkpoints.items() if found}

    async def _at_or_before(self, partition: int, epoch: int, tokens_offset: int) -> int | None:
        """Follow a source's takeovers back to the one that stands before an offset."""
        found: int | None = epoch
        while found is not None and found >= tokens_offset:
            record = await self._scout.read(TopicPartition(self._names.tokens, partition), found)
            before = _previous_epoch(record.value) if record else None
            # A mark that names one behind itself is none of a worker's: it must not lead us in a circle.
            found = before if before is not None and before < found else None
        return found

    async def _metadata(self, group: str, topics: Sequence[str], partition: int) -> dict[str, str]:
        """The metadata of a group's commits, by topic."""
        partitions = [TopicPartition(topic, partition) for topic in topics]
        with broker_errors(self._kafka):
            try:
                if group not in self._coordinators:
                    self._coordinators[group] = await self._admin.find_coordinator(group)
                commits = await self._admin.list_consumer_group_offsets(group, self._coordinators[group], partitions)
            except GroupCoordinatorNotAvailableError:
                return {}  # no group has ever committed on this broker
            except KafkaError:
                self._coordinators.pop(group, None)  # it may have moved: asked anew the next time
                raise
        return {tp.topic: commit.metadata for tp, commit in commits.items() if commit.metadata}


def _previous_epoch(value: bytes | None) -> int | None:
    """What a takeover mark says of the one before; None where something else stands."""
    try:
        mark = JOURNAL.decode(value)
    except MalformedRecord:
        return None
    return mark.previous_epoch if isinstance(mark, Takeover) else None
