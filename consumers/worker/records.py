"""The records that the owner of one partition writes, each to the partition number that its input came from."""

from aiokafka import ConsumerRecord, TopicPartition

from consumers.transactor import OutRecord
from consumers.worker.intake import dead_letter
from consumers.worker.piece import Ending, Piece
from consumers.worker.request import RunningRequest
from consumers.worker.results import result, token_delta
from consumers.worker.takeover import Duplicate
from runtime.headers import record_headers
from schemas.batches import Member
from schemas.codec import DEAD_LETTER, JOURNAL, RESULT
from schemas.envelope import Envelope, ModelHashes
from schemas.errors import HeadraceError
from schemas.names import Names
from schemas.results import DuplicateOf, Result
from schemas.tokens import Admitted, Ended, JournalRecord, Released, Takeover


class RecordWriter:
    """Encodes what is said of the requests of one source."""

    def __init__(self, names: Names, tp: TopicPartition, *, worker: str, build: str) -> None:
        self._names = names
        self._tp = tp
        self._worker = worker
        self._build = build
        self.source = f"{tp.topic}-{tp.partition}"

    def takeover(self, committed_offset: int, previous_epoch: int | None, hashes: ModelHashes) -> OutRecord:
        """The mark whose offset is the epoch. It belongs to no request: its key is the source."""
        mark = Takeover(
            source=self.source,
            worker=self._worker,
            committed_offset=committed_offset,
            previous_epoch=previous_epoch,
            hashes=hashes,
            build=self._build,
        )
        return OutRecord(self._names.tokens, self._tp.partition, self.source.encode(), JOURNAL.encode(mark))

    def delta(self, request: RunningRequest, piece: Piece) -> OutRecord:
        """One delta."""
        return self._journal("delta", request.envelope, token_delta(request, piece))

    def admitted(self, request: RunningRequest) -> OutRecord:
        """The mark before the first forward pass of an attempt."""
        envelope = request.envelope
        mark = Admitted(
            request_id=envelope.request_id,
            tenant=envelope.tenant,
            source=self.source,
            epoch=request.epoch,
            attempt=request.attempt,
        )
        return self._journal("admitted", envelope, mark)

    def released(self, request: RunningRequest) -> OutRecord:
        """The mark of a request that is let go of in good order."""
        envelope = request.envelope
        mark = Released(request_id=envelope.request_id, tenant=envelope.tenant, source=self.source, epoch=request.epoch)
        return self._journal("released", envelope, mark)

    def ended(self, request: RunningRequest, terminal: Result) -> OutRecord:
        """The mark beside the terminal record."""
        envelope = request.envelope
        mark = Ended(
            request_id=envelope.request_id,
            tenant=envelope.tenant,
            source=self.source,
            epoch=request.epoch,
            status=terminal.status,
            input_offset=request.input_offset,
        )
        return self._journal("ended", envelope, mark)

    def result(self, request: RunningRequest, ending: Ending, now_ms: float) -> Result:
        """How a request ended. It may be too large for a record."""
        return result(request, ending, now_ms=now_ms, build=self._build)

    def end(self, request: RunningRequest, terminal: Result) -> list[OutRecord]:
        """The terminal record of a request and its mark, to be written in one transaction, the result first."""
        return [
            self._record(self._names.results, "result", request.envelope, RESULT.encode(terminal)),
            self.ended(request, terminal),
        ]

    def duplicate(self, member: Member, decision: Duplicate) -> OutRecord:
        """Points from a request that was sent again to the result of the first."""
        envelope = member.envelope
        record = DuplicateOf(
            request_id=envelope.request_id,
            tenant=envelope.tenant,
            result_offset=decision.result_offset,
            has_ended=decision.has_ended,
            session=envelope.session,
        )
        return self._record(self._names.results, "duplicate", envelope, RESULT.encode(record))

    def dead_letter(self, record: ConsumerRecord, error: HeadraceError) -> OutRecord:
        """A record that cannot be decoded, under its own key and headers."""
        letter = dead_letter(record, error)
        key = letter.key if letter.key is not None else self.source.encode()
        return OutRecord(
            self._names.dead_letters, self._tp.partition, key, DEAD_LETTER.encode(letter), list(letter.headers)
        )

    def _journal(self, kind: str, envelope: Envelope, record: JournalRecord) -> OutRecord:
        return self._record(self._names.tokens, kind, envelope, JOURNAL.encode(record))

    def _record(self, topic: str, kind: str, envelope: Envelope, value: bytes) -> OutRecord:
        headers = record_headers(kind, envelope, source=self.source)
        return OutRecord(topic, self._tp.partition, envelope.key.encode(), value, headers)
