"""All that is around a worker on the real broker: what the pipeline sends, and what an independent client reads."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from runtime.kafka import make_admin, partition_for
from runtime.topics import create_missing
from schemas.batches import Batch, Member
from schemas.codec import BATCH, DEAD_LETTER, JOURNAL, MODEL, RESULT
from schemas.control import DeadLetter, ModelAnnouncement
from schemas.names import Lane, Names
from schemas.results import DuplicateOf, Result
from schemas.settings import Settings
from schemas.tokens import Ended, JournalRecord, Takeover, TokenDelta
from schemas.topics import registry
from tests.consumers.worker.tiny_model import MODEL_NAME

T = TypeVar("T")


class Place(NamedTuple):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int


class Seen(NamedTuple):
    """A committed record as librdkafka gives it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


@dataclass
class ChoiceStream:
    """What a reader has of one choice when it goes by the rule."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)


class Outside:
    """Sends batches and reads all that the worker writes, with another family of client than ours."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = Names(settings.topics.namespace, settings.topics.generation)
        self.seen: list[Seen] = []
        connection = {"bootstrap.servers": settings.kafka.bootstrap_servers}
        self._producer = Producer({**connection, "enable.idempotence": True})
        self._consumer = Consumer(
            {**connection, "group.id": "none", "enable.auto.commit": False, "isolation.level": "read_committed"}
        )
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="outside")

    async def __aenter__(self) -> "Outside":
        topics = self.settings.topics
        await create_missing(self.settings.kafka, registry(self.names, topics, self.settings.models))
        read = [self.names.tokens, self.names.results, self.names.dead_letters, self.names.models]
        self._consumer.assign([TopicPartition(name, number, 0) for name in read for number in range(topics.partitions)])
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopping.set()
        await asyncio.to_thread(self._thread.join)
        self._consumer.close()
        # It has no close: it lets go of the broker when nobody holds it any more.
        del self._producer

    def partition_of(self, key: str) -> int:
        """Where the records of a request are."""
        return partition_for(key.encode(), self.settings.topics.partitions)

    def ids_in(self, partition: int, count: int, prefix: str = "r") -> list[str]:
        """Request ids that belong into a partition."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            if self.partition_of(f"{prefix}{number}") == partition:
                found.append(f"{prefix}{number}")
            number += 1
        return found

    def send(self, *members: Member, lane: Lane = "interactive", topic: str | None = None) -> Place:
        """Send one batch, as the pipeline does: to the partition of its first member's key."""
        key = members[0].envelope.key
        return self.send_raw(
            topic or self.names.batches(MODEL_NAME, lane),
            BATCH.encode(Batch(members=list(members))),
            key=key.encode(),
            partition=self.partition_of(key),
        )

    def send_raw(self, topic: str, value: bytes | None, *, key: bytes | None, partition: int) -> Place:
        """Send any bytes; gives the place where they stand."""
        offsets: list[int] = []

        def delivered(_: object, message: Message) -> None:
            offsets.append(_known(message.offset()))

        self._producer.produce(topic, value, key=key, partition=partition, on_delivery=delivered)
        if self._producer.flush(30):
            raise TimeoutError("the broker took no record")
        return Place(topic, partition, offsets[0])

    async def until(self, what: Callable[[], bool]) -> None:
        """Wait until something is true of what was read so far."""
        while not what():
            self._news.clear()
            await self._news.wait()

    async def result(self, request_id: str, tenant: str = "default") -> Result:
        """The terminal record of a request, when it is there and its whole stream was read as well.

        Topics are read independently: the result may come before the deltas that stand before it.
        """
        await self.until(lambda: bool(self.results_of(request_id, tenant)) and self._is_closed(request_id, tenant))
        return self.results_of(request_id, tenant)[0]

    async def begun(self, request_id: str, num_tokens: int = 1) -> None:
        """Wait until so many tokens of a request can be read."""
        await self.until(lambda: len(self.stream(request_id).get(0, ChoiceStream()).token_ids) >= num_tokens)

    async def taken_over(self, worker: str, sources: set[str]) -> None:
        """Wait until a worker has taken these sources over."""
        await self.until(lambda: sources <= {mark.source for mark in self.takeovers() if mark.worker == worker})

    def results_of(self, request_id: str, tenant: str = "default") -> list[Result]:
        """All terminal records of a request."""
        records = [RESULT.decode(one.value) for one in self.of(self.names.results)]
        found = [record for record in records if isinstance(record, Result)]
        return [record for record in found if (record.request_id, record.tenant) == (request_id, tenant)]

    def duplicates_of(self, request_id: str) -> list[DuplicateOf]:
        """All pointers from repeats of a request."""
        records = [RESULT.decode(one.value) for one in self.of(self.names.results)]
        return [one for one in records if isinstance(one, DuplicateOf) and one.request_id == request_id]

    def journal(self) -> list[tuple[Seen, JournalRecord]]:
        """All that stands on `tokens`."""
        return [(one, JOURNAL.decode(one.value)) for one in self.of(self.names.tokens)]

    def _is_closed(self, request_id: str, tenant: str) -> bool:
        """Whether the mark that stands behind a request's last delta was read."""
        marks = [record for _, record in self.journal() if isinstance(record, Ended)]
        return any((mark.request_id, mark.tenant) == (request_id, tenant) for mark in marks)

    def takeovers(self) -> list[Takeover]:
        """All takeover marks."""
        return [record for _, record in self.journal() if isinstance(record, Takeover)]

    def deltas(self, request_id: str) -> list[TokenDelta]:
        """All deltas of a request, void ones too."""
        records = [record for _, record in self.journal() if isinstance(record, TokenDelta)]
        return [record for record in records if record.request_id == request_id]

    def stream(self, request_id: str, tenant: str = "default") -> dict[int, ChoiceStream]:
        """What a reader gets of a request: the rule for void deltas, written down a second time and apart from ours.

        Raises ValueError for a gap or a repeat.
        """
        epochs: dict[tuple[int, str], int] = {}
        choices: dict[int, ChoiceStream] = {}
        for seen, record in self.journal():
            if isinstance(record, Takeover):
                epochs[seen.partition, record.source] = seen.offset
            if not isinstance(record, TokenDelta) or (record.request_id, record.tenant) != (request_id, tenant):
                continue
            if record.epoch < epochs.get((seen.partition, record.source), 0):
                continue
            choice = choices.setdefault(record.choice, ChoiceStream())
            if record.index != len(choice.token_ids) or choice.finish_reasons:
                raise ValueError(f"{request_id}: index {record.index} after {len(choice.token_ids)} tokens")
            choice.token_ids += record.token_ids
            choice.text += record.text
            choice.finish_reasons += [record.finish_reason] if record.finish_reason else []
        return choices

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters."""
        return [DEAD_LETTER.decode(one.value) for one in self.of(self.names.dead_letters)]

    def announcements(self) -> list[ModelAnnouncement]:
        """All announced models."""
        return [MODEL.decode(one.value) for one in self.of(self.names.models)]

    def of(self, topic: str) -> list[Seen]:
        """What was read of one topic."""
        return [one for one in self.seen if one.topic == topic]

    async def is_committed(self, place: Place, group: str | None = None) -> bool:
        """Whether a record is committed as done."""
        admin = make_admin(self.settings.kafka)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(group or self.worker_group)
        finally:
            await admin.close()
        return any(
            (tp.topic, tp.partition) == (place.topic, place.partition) and found.offset > place.offset
            for tp, found in offsets.items()
        )

    async def until_committed(self, place: Place, group: str | None = None) -> None:
        """Wait until a record is committed as done: seen a moment after the records of the same transaction."""
        while not await self.is_committed(place, group):  # noqa: ASYNC110 (the broker sets no event of ours)
            await asyncio.sleep(0.02)

    @property
    def worker_group(self) -> str:
        """The group of the workers of the tiny model."""
        return self.names.worker_group(MODEL_NAME)

    def sources(self) -> set[str]:
        """All input partitions of a worker that is alone."""
        topics = [self.names.batches(MODEL_NAME), self.names.batches(MODEL_NAME, "bulk")]
        topics += [self.names.refusals(), self.names.refusals("bulk")]
        return {f"{topic}-{number}" for topic in topics for number in range(self.settings.topics.partitions)}

    def _read(self) -> None:
        while not self._is_stopping.is_set():
            messages = [message for message in self._consumer.consume(500, 0.05) if message.error() is None]
            if messages:
                self.seen += [_seen(message) for message in messages]
                self._loop.call_soon_threadsafe(self._news.set)


async def until(what: Callable[[], bool]) -> None:
    """Wait for what sets no event of ours."""
    while not what():  # noqa: ASYNC110 (see above)
        await asyncio.sleep(0.01)


def _seen(message: Message) -> Seen:
    return Seen(
        _known(message.topic()),
        _known(message.partition()),
        _known(message.offset()),
        message.key(),
        _known(message.value()),
    )


def _known(value: T | None) -> T:
    """A field of a delivered message, which always has it; the type of the client says that it may be None."""
    assert value is not None
    return value
