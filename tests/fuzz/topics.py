"""Whatever stands on a topic: each codec, and the pure first step of each role that reads there."""

import contextlib
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from consumers.gate.admission import AdmissionRules, Forward, Refuse, admit
from consumers.gate.arrival import Arrival
from consumers.gate.book import rebuild as rebuild_book
from consumers.journal import JournalEntry, rebuild
from consumers.worker.takeover import decode_checkpoint
from headrace.client.assembly import Assembly
from headrace.client.feed import Claimed, Feed
from headrace.client.inbox import Inbox
from runtime.headers import REROUTED_FROM
from runtime.kafka import partition_for
from runtime.tracing import traceparent_of
from runtime.unreadable import envelope_of_unreadable
from schemas.codec import DEAD_LETTER, JOURNAL, RESULT, TURN, Codec
from schemas.envelope import Envelope
from schemas.errors import MalformedRecord
from schemas.names import Names
from schemas.sessions import session_record_key
from tests.fuzz import samples
from tests.fuzz.damage import json_bytes, msgpack_bytes
from tests.fuzz.target import Target, must

NAMES = Names("fuzz")
RULES = AdmissionRules(num_partitions=3, default_ttl_s=3600.0, max_age_s=86_400.0)

keys = st.none() | st.sampled_from([b"", b"r-1", b"s-1", b"\xff", b"k" * 100_000]) | st.binary(max_size=20)
header_names = st.sampled_from(["traceparent", "tenant", "ce_id", REROUTED_FROM, ""]) | st.text(max_size=8)
header_values = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from([samples.TRACEPARENT.encode(), b"r-1", b"fuzz.requests-0-7", b"x" * 5_000])
)
headers = st.lists(st.tuples(header_names, header_values), max_size=4)


def _decodes_or_says_so(codec: Codec[Any]) -> Any:
    def check(value: bytes) -> None:
        try:
            record = codec.decode(value)
        except MalformedRecord as error:
            # The message goes into a result, through here.
            must(len(error.body.message) <= 1_000, "the error is longer than anyone reads")
            return
        # Who takes a record in may pass it on.
        assert codec.decode(codec.encode(record)) == record or _holds_nan(record)

    return check


def _holds_nan(value: object) -> bool:
    """NaN equals nothing, not even itself."""
    return "nan" in repr(value)


def _check_request(given: tuple[Any, ...]) -> None:
    """The gate: any record on `requests` has one decision, and what is written of it fits a record."""
    value, key, record_headers, partition = given
    arrival = Arrival(
        "fuzz.requests", partition, 7, samples.NOW_MS, key, value, record_headers, traceparent_of(record_headers)
    )
    decision = admit(arrival, RULES, now_ms=samples.NOW_MS)
    if isinstance(decision, Forward):
        assert TURN.decode(decision.value).envelope == decision.turn.envelope
        assert partition_for(decision.turn.envelope.key.encode(), 3) == partition
    if isinstance(decision, Refuse):
        written = RESULT.encode(decision.result)
        assert len(written) < 100_000
        assert RESULT.decode(written) == decision.result
        assert msgspec.convert(msgspec.to_builtins(decision.envelope), Envelope) == decision.envelope
        if decision.dead_letter is not None:
            assert DEAD_LETTER.decode(DEAD_LETTER.encode(decision.dead_letter)).value == value


def _check_sessions(records: list[tuple[bytes | None, bytes | None]]) -> None:
    """The gate's takeover: whatever stands on `sessions`, the sound sessions are found."""
    sound = (
        session_record_key("default", "sound"),
        b'{"schema":"session/1","session":"sound","tenant":"default","turn":4}',
    )
    book = rebuild_book([*records, sound])
    assert book[("default", "sound")].state.turn == 4  # type: ignore[index] # a SessionKey is such a pair


def _check_journal(values: list[bytes]) -> None:
    """A worker's takeover: whatever stands on `tokens`, the progress of all requests is known or said to have a gap."""
    entries = []
    for offset, value in enumerate(values):
        with contextlib.suppress(MalformedRecord):
            entries.append(JournalEntry(offset, b"r-1", JOURNAL.decode(value), samples.NOW_MS))
    for progress in rebuild(entries).values():
        assert progress.has_gap in (True, False)
        assert progress.num_attempts >= 0


class _Read(NamedTuple):
    is_result: bool
    key: bytes | None
    value: bytes


def _check_reader(records: list[_Read]) -> None:
    """A client's reader: whatever stands on `tokens` and `results`, a good result behind it still ends the stream."""
    feed = Feed(NAMES, 0)
    inbox = Inbox(Assembly("ours"), key=b"ours", tenant="default")
    feed.add(inbox)
    good = b'{"schema":"result/1","id":"chatcmpl-ours","object":"chat.completion","created":0,"model":"m",'
    good += b'"request_id":"ours","status":"failed"}'
    for offset, record in enumerate([*records, _Read(is_result=True, key=b"ours", value=good)]):
        if record.is_result:
            for event in feed.take_result(offset, record.key, record.value):
                if isinstance(event, Claimed):  # (followed by the reader itself, and then taken)
                    event.inbox.take_result(event.result)
        else:
            feed.take_token(offset, record.key, record.value)
    inbox.finish()
    assert inbox.has_ended


def _check_headers(given: tuple[Any, ...]) -> None:
    """A record that cannot be decoded: its headers name a request in a way that can travel on, or none."""
    key, record_headers, timestamp_ms = given
    envelope = envelope_of_unreadable(
        key=key, headers=record_headers, timestamp_ms=timestamp_ms, max_age_s=3600.0, lane="bulk"
    )
    if envelope is not None:
        assert len(msgspec.json.encode(envelope)) < 20_000
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(envelope), type=Envelope) == envelope


def _check_checkpoint(text: str) -> None:
    checkpoint = decode_checkpoint(text)
    assert checkpoint is None or 0 <= checkpoint.epoch < 2**63


_requests = st.tuples(json_bytes(samples.REQUESTS), keys, headers, st.integers(0, 2))
_journal = json_bytes([sample.replace(b"0199c0de-7a3e-7d41-9f52-3c1a5be80a17", b"ours") for sample in samples.TOKENS])
_results = json_bytes([sample.replace(b"0199c0de-7a3e-7d41-9f52-3c1a5be80a17", b"ours") for sample in samples.RESULTS])
_session_keys = st.sampled_from(
    [session_record_key("default", "s-1", 0), session_record_key("default", "alice"), b"", None]
)
_checkpoints = json_bytes([b'{"epoch":12,"tokens_low":7}']).map(lambda value: value.decode("utf-8", "replace"))

TARGETS = [
    *(
        Target(f"{name} are decoded or refused", json_bytes(valid), _decodes_or_says_so(codec))
        for name, (codec, valid) in samples.JSON_CODECS.items()
    ),
    *(
        Target(f"{name} are decoded or refused", msgpack_bytes(valid), _decodes_or_says_so(codec))
        for name, (codec, valid) in samples.MSGPACK_CODECS.items()
    ),
    Target("the gate decides every request", _requests, _check_request),
    Target(
        "the gate finds its sessions",
        st.lists(st.tuples(_session_keys, st.none() | json_bytes(samples.SESSIONS)), max_size=4),
        _check_sessions,
    ),
    Target("a worker reads the journal back", st.lists(_journal, max_size=5), _check_journal),
    Target(
        "a client reads on",
        st.lists(
            st.builds(_Read, st.just(False), keys | st.just(b"ours"), _journal)
            | st.builds(_Read, st.just(True), keys | st.just(b"ours"), _results),
            max_size=5,
        ),
        _check_reader,
    ),
    Target("headers name a request or none", st.tuples(keys, headers, st.integers(-1, 2**63 - 1)), _check_headers),
    Target("a commit's metadata is a checkpoint or none", _checkpoints | st.text(max_size=50), _check_checkpoint),
]
