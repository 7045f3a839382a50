"""What a polled record brings: the members of its batch, or, where it cannot be decoded, what can be saved of it."""

from typing import NamedTuple

from aiokafka import ConsumerRecord

from runtime.unreadable import envelope_of_unreadable
from schemas.batches import Member, Refusal
from schemas.codec import BATCH
from schemas.control import DeadLetter
from schemas.errors import HeadraceError, MalformedRecord
from schemas.names import Names, lane_of
from schemas.settings import Settings

STAGE = "worker"

# As base64 inside JSON a bundle must fit a record again.
MAX_DEAD_BYTES = 700_000
# Of what surrounds a broken value, so much is kept beside the bundle and in it.
_MAX_ATTRIBUTE_BYTES = 16 * 1024


class Taken(NamedTuple):
    """The requests that a record brings. With `error` it could not be decoded, and belongs to the dead letters."""

    members: list[Member]
    error: MalformedRecord | None = None

    @property
    def num_endings(self) -> int:
        """How many writes it takes until the record is done; an empty one takes one as well."""
        return max(1, len(self.members) + (self.error is not None))


def take(record: ConsumerRecord, settings: Settings) -> Taken:
    """Decode a record. One that cannot be decoded still ends the request that its key and headers name.

    They name the first member only: the others of a batch are known to nobody but the bundle.
    """
    try:
        return Taken(BATCH.decode(record.value).members)
    except MalformedRecord as error:
        envelope = envelope_of_unreadable(
            key=record.key,
            headers=record.headers,
            timestamp_ms=record.timestamp,
            max_age_s=settings.gate.max_age_s,
            lane=lane_of(record.topic),
        )
        if envelope is None:
            return Taken([], error)
        refused = Refusal(envelope=envelope, model=_model(record.topic, settings), stage=STAGE, error=error.body)
        return Taken([refused], error)


def _model(topic: str, settings: Settings) -> str:
    """The model that was asked for, where the topic tells."""
    names, model = Names(settings.topics.namespace, settings.topics.generation), settings.worker.model
    return model if topic == names.batches(model, lane_of(topic)) else ""


def dead_letter(record: ConsumerRecord, error: HeadraceError) -> DeadLetter:
    """The bundle of a record that cannot be decoded: whole if that fits a record, else without what is too large.

    What is left out stays readable at its place in the topic.
    """
    attributes = _attribute_bytes(record)
    has_attributes = attributes <= _MAX_ATTRIBUTE_BYTES
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        stage="worker",
        error=error.body,
        request_id=f"{record.topic}-{record.partition}-{record.offset}",
        key=record.key if has_attributes else None,
        value=record.value if len(record.value or b"") <= MAX_DEAD_BYTES else None,
        headers=list(record.headers) if has_attributes else [],
    )


def _attribute_bytes(record: ConsumerRecord) -> int:
    """The size of key and headers. A name's character may take six in JSON."""
    in_headers = sum(6 * len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + in_headers
