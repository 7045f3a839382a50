"""Reads what a takeover must know: where the predecessor stood, and what it has said of its requests."""

import time
from contextlib import aclosing
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from consumers.journal import JournalEntry
from consumers.worker.takeover import DEDUP_WINDOW_MS, Checkpoint, decode_checkpoint
from runtime.logging import get_logger
from runtime.reading import read_up_to
from schemas.codec import JOURNAL
from schemas.errors import BrokerUnavailable, MalformedRecord

log = get_logger(__name__)


class CommittedPosition(NamedTuple):
    """Where the predecessor stood: the offset to go on at, and its checkpoint if it left one."""

    offset: int
    checkpoint: Checkpoint | None


async def committed_position(
    admin: AIOKafkaAdminClient, reader: AIOKafkaConsumer, group: str, tp: TopicPartition
) -> CommittedPosition:
    """Read the commit of a group, to be called after the fence. Without one it is where the kept records begin.

    Raises:
        BrokerUnavailable: the group's coordinator is not ready to answer.
    """
    committed = (await admin.list_consumer_group_offsets(group, partitions=[tp])).get(tp)
    if committed is None:
        # aiokafka drops the error of the whole answer. It must not be taken for "nothing was committed".
        raise BrokerUnavailable(f"the coordinator of {group} does not say what is committed")
    start = (await reader.beginning_offsets([tp]))[tp]
    return CommittedPosition(max(committed.offset, start), decode_checkpoint(committed.metadata or ""))


async def read_back(
    reader: AIOKafkaConsumer, tokens: TopicPartition, *, mark_offset: int, tokens_low: int | None, patience_s: float
) -> list[JournalEntry]:
    """The committed records of `tokens` that a takeover needs, up to and with its own mark.

    Starts at `tokens_low` (None: at what is kept) or where the window of remembered ids begins, whichever is earlier:
    hours ago, where a result has waited for object storage as long. Open transactions of others hold the reading back
    until they end.

    Raises:
        BrokerUnavailable: nothing came for `patience_s`.
    """
    reader.assign([tokens])
    # Never behind the mark, whatever a commit's metadata says: it would be waited for in vain.
    reader.seek(tokens, min(mark_offset, await _start_offset(reader, tokens, tokens_low)))
    entries: list[JournalEntry] = []
    async with aclosing(read_up_to(reader, {tokens: mark_offset + 1}, patience_s=patience_s)) as batches:
        async for records in batches:
            entries += filter(None, map(_entry, records))
    return entries


async def _start_offset(reader: AIOKafkaConsumer, tokens: TopicPartition, tokens_low: int | None) -> int:
    start: int = (await reader.beginning_offsets([tokens]))[tokens]
    if tokens_low is None:
        return start
    window_ms = int(time.time() * 1000) - DEDUP_WINDOW_MS
    remembered = (await reader.offsets_for_times({tokens: window_ms}))[tokens]
    return max(start, min(tokens_low, remembered.offset) if remembered is not None else tokens_low)


def _entry(record: ConsumerRecord) -> JournalEntry | None:
    try:
        return JournalEntry(record.offset, record.key, JOURNAL.decode(record.value), record.timestamp)
    except MalformedRecord as error:
        # Nobody of ours writes such a record; it says nothing of any request.
        log.warning("journal_record_skipped", topic=record.topic, offset=record.offset, error=error.message)
        return None
