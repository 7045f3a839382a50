"""One partition's records, handed to the streams that they belong to."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aiokafka import TopicPartition

from consumers.journal import VoidRule
from headrace.client.inbox import Inbox
from headrace.client.repeats import Repeat
from schemas.codec import JOURNAL, RESULT
from schemas.errors import HeadraceError, MalformedRecord
from schemas.names import Names
from schemas.results import DuplicateOf, Result
from schemas.tokens import TokenDelta

# The standard library's: a library does not set up how its host logs.
log = logging.getLogger(__name__)


class Claimed(NamedTuple):
    """A stream's result is there; most of it lies in object storage."""

    inbox: Inbox
    result: Result


class Feed:
    """The streams that are read in one partition, and the takeovers seen there."""

    def __init__(self, names: Names, number: int) -> None:
        self.number = number
        self.tokens = TopicPartition(names.tokens, number)
        self.results = TopicPartition(names.results, number)
        # Held while the positions are looked up, so that two streams do not both begin here.
        self.opening = asyncio.Lock()
        self._inboxes: dict[str, list[Inbox]] = {}
        self._rule = VoidRule()

    @property
    def is_idle(self) -> bool:
        """Whether no stream is read here."""
        return not self._inboxes

    def begin(self, epochs: Mapping[str, int]) -> None:
        """Forget the takeovers of an earlier reading; `epochs` are in force where this one begins."""
        self._rule = VoidRule(epochs)

    def add(self, inbox: Inbox) -> None:
        """Begin to feed a stream."""
        self._inboxes.setdefault(inbox.request_id, []).append(inbox)

    def remove(self, inbox: Inbox) -> None:
        """Stop feeding a stream; harmless if it was never added."""
        waiting = self._inboxes.get(inbox.request_id, [])
        if inbox in waiting:
            waiting.remove(inbox)
        if not waiting:
            self._inboxes.pop(inbox.request_id, None)

    def fail(self, error: HeadraceError) -> None:
        """End all streams with an error."""
        for inbox in self._all():
            inbox.fail(error)

    def take_token(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take a record of `tokens`."""
        try:
            record = JOURNAL.decode(value)
        except MalformedRecord as error:
            log.warning("skipped a record of %s at offset %d: %s", self.tokens.topic, offset, error.message)
            return
        if self._rule.accepts(offset, record) and isinstance(record, TokenDelta):
            for inbox in self._of(record.request_id, record.tenant, key):
                inbox.take(record)

    def take_result(self, offset: int, key: bytes | None, value: bytes | None) -> Iterator[Inbox | Claimed | Repeat]:
        """Take a record of `results`; gives the streams that have a result now, or are told where it is."""
        # Results are large, and only those of our own requests are of interest: the key tells before any decoding.
        if not any(inbox.key == key for inbox in self._all()):
            return
        try:
            record = RESULT.decode(value)
        except MalformedRecord as error:
            log.warning("skipped a record of %s at offset %d: %s", self.results.topic, offset, error.message)
            return
        for inbox in self._of(record.request_id, record.tenant, key):
            if isinstance(record, Result):
                if not inbox.settle():
                    continue
                if record.claim is not None:
                    yield Claimed(inbox, record)
                    continue
                inbox.take_result(record)
                yield inbox
            elif isinstance(record, DuplicateOf):
                yield Repeat(inbox, offset, record.result_offset, record.has_ended)

    def _of(self, request_id: str, tenant: str, key: bytes | None) -> list[Inbox]:
        return [
            inbox for inbox in self._inboxes.get(request_id, []) if inbox.tenant == tenant and inbox.key == (key or b"")
        ]

    def _all(self) -> list[Inbox]:
        return [inbox for waiting in self._inboxes.values() for inbox in waiting]
