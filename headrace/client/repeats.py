"""The result of a request that was sent before: it may lie where no stream of ours reads any more."""

from contextlib import aclosing
from typing import NamedTuple

from headrace.client.ids import CLOCK_MARGIN_MS, uuid7_ms
from headrace.client.inbox import Inbox
from headrace.client.scout import Scout
from schemas.codec import RESULT
from schemas.errors import AlreadyEnded, MalformedRecord
from schemas.results import Result


class Repeat(NamedTuple):
    """A stream's request was sent again, says the record of `results` at `offset`.

    Its result stands at `result_offset`, where that is known. If the first one has ended nothing more will come.
    """

    inbox: Inbox
    offset: int
    result_offset: int | None
    has_ended: bool


async def result_of_repeat(scout: Scout, partition: int, repeat: Repeat) -> Result | None:
    """The first terminal record of the request; None if it is still to come.

    Raises:
        AlreadyEnded: it has ended, and its result is not kept any more.
        BrokerUnavailable: the log cannot be read.
    """
    inbox = repeat.inbox
    if repeat.result_offset is not None:
        found = _result_for(inbox, await scout.result_at(partition, repeat.result_offset))
    else:
        found = await _search(scout, partition, repeat)
    if found is None and repeat.has_ended:
        raise AlreadyEnded(
            f"request {inbox.request_id} was sent before and has ended; its result is not kept any more: send it again "
            "under a new id"
        )
    return found


async def _search(scout: Scout, partition: int, repeat: Repeat) -> Result | None:
    """Look through the results before the record that tells of the repeat, from the time in the id on if it has one."""
    time_ms = uuid7_ms(repeat.inbox.request_id)
    start = await (scout.earliest(partition) if time_ms is None else scout.at(partition, time_ms - CLOCK_MARGIN_MS))
    async with aclosing(scout.results(partition, start.results, repeat.offset)) as records:
        async for record in records:
            if record.key == repeat.inbox.key and (found := _result_for(repeat.inbox, record.value)) is not None:
                return found
    return None


def _result_for(inbox: Inbox, value: bytes | None) -> Result | None:
    try:
        record = RESULT.decode(value)
    except MalformedRecord:
        return None
    is_ours = isinstance(record, Result) and (record.request_id, record.tenant) == (inbox.request_id, inbox.tenant)
    return record if isinstance(record, Result) and is_ours else None
