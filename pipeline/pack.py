"""Packs what is ready into batch records: many small sequences become one record, none waits for another."""

from collections.abc import Iterable, Iterator

import msgspec

from pipeline.refuse import STAGE
from runtime.headers import record_headers
from schemas.batches import Batch, Member, Refusal, Sequence
from schemas.codec import BATCH
from schemas.errors import InvalidValue

# Broker and producer refuse a record over 1 MiB; key, headers and framing need some of it.
MAX_VALUE_BYTES = (1 << 20) - (16 << 10)


class Prepared(msgspec.Struct, frozen=True):
    """What has become of one input record: a member for `topic`, and the input's offset."""

    topic: str
    offset: int
    member: Member


class Packed(msgspec.Struct, frozen=True):
    """One record to send; when it is acknowledged, the input records at `offsets` are done."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    offsets: list[int]


def pack(ready: Iterable[Prepared], *, max_tokens: int, max_bytes: int = MAX_VALUE_BYTES) -> list[Packed]:
    """Pack members of one input partition, in order, into records of at most `max_tokens` prompt tokens each.

    Members of one topic keep their order, within a record and from record to record. A sequence over the budget goes
    alone. One over `max_bytes` cannot travel at all and becomes a refusal.
    """
    open_groups: dict[str, _Group] = {}
    groups: list[_Group] = []
    for item in ready:
        group = open_groups.get(item.topic)
        if group is None or not group.has_room(item, max_tokens):
            group = open_groups[item.topic] = _Group()
            groups.append(group)
        group.add(item)
    return [record for group in groups for record in _records(group.items, max_bytes)]


class _Group:
    def __init__(self) -> None:
        self.items: list[Prepared] = []
        self._num_tokens = 0

    def has_room(self, item: Prepared, max_tokens: int) -> bool:
        return self._num_tokens + _num_tokens(item.member) <= max_tokens

    def add(self, item: Prepared) -> None:
        self.items.append(item)
        self._num_tokens += _num_tokens(item.member)


def _num_tokens(member: Member) -> int:
    return len(member.prompt_token_ids) if isinstance(member, Sequence) else 0


def _records(items: list[Prepared], max_bytes: int) -> Iterator[Packed]:
    value = BATCH.encode(Batch(members=[item.member for item in items]))
    if len(value) <= max_bytes:
        yield _packed(items, value)
    elif len(items) > 1:
        middle = len(items) // 2
        yield from _records(items[:middle], max_bytes)
        yield from _records(items[middle:], max_bytes)
    else:
        yield from _records([_too_large(items[0], len(value), max_bytes)], max_bytes=len(value))


def _packed(items: list[Prepared], value: bytes) -> Packed:
    first = items[0].member.envelope
    return Packed(
        topic=items[0].topic,
        key=first.key.encode(),
        value=value,
        headers=record_headers("batch", first, source=STAGE),
        offsets=[item.offset for item in items],
    )


def _too_large(item: Prepared, num_bytes: int, max_bytes: int) -> Prepared:
    """A refusal in place of a member that no record can hold. A refusal holds no text of the client but ids."""
    error = InvalidValue(f"the request takes {num_bytes} bytes once it is tokenized; at most {max_bytes} can travel")
    member = item.member
    return Prepared(
        item.topic,
        item.offset,
        Refusal(envelope=member.envelope, model=member.model, stage=STAGE, error=error.body, chat=member.chat),
    )
