"""What `tokens` says: which of its records count (the void rule), and how far each request has come.

Pure, records in and state out: a worker's takeover, every reader and a model checker go by the same functions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from schemas.envelope import Envelope, Status
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason, TokenLogprob
from schemas.tokens import Admitted, Ended, JournalRecord, Released, Requeued, Takeover, TokenDelta


class RequestIdentity(NamedTuple):
    """Who a request is: the same id of another tenant or session is another request."""

    tenant: str
    key: str
    request_id: str


class JournalEntry(NamedTuple):
    """One committed record of `tokens`. `timestamp_ms` is broker time."""

    offset: int
    key: bytes | None
    record: JournalRecord
    timestamp_ms: int = 0


def identity_of(envelope: Envelope) -> RequestIdentity:
    """The identity of the request that an envelope belongs to."""
    return RequestIdentity(envelope.tenant, envelope.key, envelope.request_id)


class VoidRule:
    """A delta is void if a committed takeover of its source with a higher epoch stands before it.

    Feed it all records of one partition in order. A reader that starts inside the log gives the epochs in force there.
    """

    def __init__(self, epochs: Mapping[str, int] | None = None) -> None:
        self._epochs = dict(epochs or {})

    def epoch_of(self, source: str) -> int | None:
        """The newest takeover of a source so far."""
        return self._epochs.get(source)

    def accepts(self, offset: int, record: JournalRecord) -> bool:
        """Note one record, and say whether it counts."""
        if isinstance(record, Takeover):
            self._epochs[record.source] = max(offset, self._epochs.get(record.source, offset))
            return True
        # A worker that finds itself fenced still says what it let go of, under its old epoch.
        return isinstance(record, Released) or record.epoch >= self._epochs.get(record.source, record.epoch)


@dataclass(slots=True)
class ChoiceProgress:
    """What has been said of one choice. `text` is the text of the deltas, exactly as readers have it."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    has_gap: bool = False

    def add(self, delta: TokenDelta) -> None:
        """Take the delta that stands at the next index; one that was seen already is skipped."""
        if self.finish_reason is not None or delta.index < len(self.token_ids):
            return
        if delta.index > len(self.token_ids):
            self.has_gap = True
        if self.has_gap:
            return
        chunk = delta.choices[0]
        self.token_ids += delta.token_ids
        self.text += chunk.content
        self.logprobs += chunk.logprobs or []
        self.finish_reason = chunk.finish_reason
        self.stop_reason = None if isinstance(chunk.stop_reason, msgspec.UnsetType) else chunk.stop_reason


@dataclass(slots=True)
class Progress:
    """How far one request has come. The first source with a valid record owns its stream.

    `first_offset` is where its first record stands in `tokens`; `first_token_ms` is broker time; `epochs` are the
    takeovers under which it was admitted, one an attempt.
    """

    source: str
    first_offset: int
    first_token_ms: int | None = None
    epochs: set[int] = field(default_factory=set)
    choices: dict[int, ChoiceProgress] = field(default_factory=dict)
    status: Status | None = None
    error: ErrorBody | None = None
    ended: Ended | None = None

    @property
    def num_attempts(self) -> int:
        """How often it was admitted."""
        return len(self.epochs)

    @property
    def has_gap(self) -> bool:
        """Whether a delta is missing: retention took it, or the log was written by something else."""
        return any(choice.has_gap for choice in self.choices.values())

    def add(self, entry: JournalEntry) -> None:
        """Note one record of this request that counts."""
        record = entry.record
        if isinstance(record, Ended):
            self.ended = record
            self.choices.clear()
        elif record.source != self.source:
            return
        elif isinstance(record, Admitted):
            self.epochs.add(record.epoch)
        elif isinstance(record, TokenDelta):
            self._add_delta(record, entry.timestamp_ms)

    def _add_delta(self, delta: TokenDelta, timestamp_ms: int) -> None:
        self.choices.setdefault(delta.choice, ChoiceProgress()).add(delta)
        if delta.token_ids and self.first_token_ms is None:
            self.first_token_ms = timestamp_ms
        self.status = delta.status or self.status
        self.error = delta.error or self.error


class Journal:
    """The progress of all requests of a partition of `tokens`, built from its records in order."""

    def __init__(self, rule: VoidRule | None = None) -> None:
        self._rule = rule or VoidRule()
        self.progress: dict[RequestIdentity, Progress] = {}

    def add(self, entry: JournalEntry) -> None:
        """Note one record."""
        record = entry.record
        if not self._rule.accepts(entry.offset, record) or isinstance(record, Takeover | Released | Requeued):
            return
        identity = RequestIdentity(record.tenant, _text(entry.key), record.request_id)
        if identity not in self.progress:
            self.progress[identity] = Progress(source=record.source, first_offset=entry.offset)
        self.progress[identity].add(entry)


def rebuild(entries: Sequence[JournalEntry]) -> dict[RequestIdentity, Progress]:
    """How far each request has come by the records up to one's own takeover mark, which is the last of them."""
    journal = Journal(VoidRule(epochs_at_start(entries)))
    for entry in entries:
        journal.add(entry)
    return journal.progress


def epochs_at_start(entries: Iterable[JournalEntry]) -> dict[str, int]:
    """The epochs in force before the first of these records: the first takeover of a source names the one before.

    Without this, a late delta of a worker that was fenced before the first record would count.
    """
    before: dict[str, int | None] = {}
    for entry in entries:
        if isinstance(entry.record, Takeover):
            before.setdefault(entry.record.source, entry.record.previous_epoch)
    return {source: epoch for source, epoch in before.items() if epoch is not None}


def _text(key: bytes | None) -> str:
    return (key or b"").decode(errors="replace")
