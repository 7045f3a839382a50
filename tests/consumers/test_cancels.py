"""Whom a cancel means: by tenant, session and id, and for as long as an id names the same request."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.cancels import CancelBook
from consumers.worker.takeover import DEDUP_WINDOW_MS
from schemas.control import Cancel
from schemas.envelope import Envelope

NOW_MS = 1_790_000_000_000
MAX_AGE_S = 3_600.0
MAX_AGE_MS = int(MAX_AGE_S * 1000)


def envelope(
    request_id: str = "r", *, tenant: str = "default", session: str | None = None, at_ms: int = NOW_MS
) -> Envelope:
    return Envelope(
        request_id=request_id,
        key=session or request_id,
        accepted_at_ms=at_ms,
        deadline_ms=at_ms + MAX_AGE_MS,
        traceparent="00-0-0-00",
        tenant=tenant,
        session=session,
    )


def cancelled(cancel: Cancel, at_ms: int = NOW_MS) -> CancelBook:
    book = CancelBook(MAX_AGE_S)
    book.note(cancel, at_ms)
    return book


def test_a_cancelled_request_ends_with_the_reason() -> None:
    error = cancelled(Cancel(request_id="r", reason="asked twice")).find(envelope())
    assert error is not None
    assert (error.code, error.message) == ("cancelled", "the request was cancelled: asked twice")
    assert cancelled(Cancel(request_id="r", reason="x" * 10_000)).find(envelope()) is not None


def test_a_reason_of_any_length_fits_a_record() -> None:
    error = cancelled(Cancel(request_id="r", reason="x" * 1_000_000)).find(envelope())
    assert error is not None
    assert len(msgspec.json.encode(error.body)) < 1_000


@pytest.mark.parametrize(
    "other",
    [
        envelope("q"),
        envelope(tenant="acme"),
        envelope(session="s"),
        envelope("r", session="r2"),
    ],
    ids=["another id", "another tenant", "in a session", "in another session"],
)
def test_nobody_else_is_meant(other: Envelope) -> None:
    assert cancelled(Cancel(request_id="r")).find(other) is None


def test_a_request_of_a_session_is_meant_with_its_session_only() -> None:
    book = cancelled(Cancel(request_id="r", session="s"))
    assert book.find(envelope(session="s")) is not None
    assert book.find(envelope(session="t")) is None
    assert book.find(envelope()) is None


def test_a_session_of_the_same_name_as_an_id_is_not_taken_for_it() -> None:
    """Identity is id and key together: `r` in session `r` and `r` without one share the key."""
    book = cancelled(Cancel(request_id="r"))
    assert book.find(envelope(session="r")) is not None  # the same tenant, key and id: one request by our definition
    assert book.find(envelope("q", session="r")) is None


@pytest.mark.parametrize(
    ("accepted_after_ms", "is_meant"),
    [(-MAX_AGE_MS, True), (-1, True), (0, True), (DEDUP_WINDOW_MS, True), (DEDUP_WINDOW_MS + 1, False)],
)
def test_a_cancel_means_what_came_before_it_and_what_comes_soon(accepted_after_ms: int, *, is_meant: bool) -> None:
    found = cancelled(Cancel(request_id="r")).find(envelope(at_ms=NOW_MS + accepted_after_ms))
    assert (found is not None) == is_meant


cancels = st.builds(
    Cancel,
    request_id=st.sampled_from(["a", "b"]),
    tenant=st.sampled_from(["default", "acme"]),
    session=st.sampled_from([None, "s"]),
)
times_ms = st.integers(NOW_MS - 2 * MAX_AGE_MS, NOW_MS + 2 * MAX_AGE_MS)


@given(st.lists(st.tuples(cancels, times_ms), max_size=40), st.sampled_from(["a", "b"]), times_ms)
def test_what_is_forgotten_can_mean_nobody_who_still_has_time(
    noted: list[tuple[Cancel, int]], request_id: str, accepted_at_ms: int
) -> None:
    """Against all cancels kept for ever: in any order of arrival, a request that may still run finds the same."""
    book = CancelBook(MAX_AGE_S)
    for cancel, at_ms in noted:
        book.note(cancel, at_ms)
    newest_ms = max((at_ms for _, at_ms in noted), default=0)
    for session in (None, "s"):
        request = envelope(request_id, session=session, at_ms=accepted_at_ms)
        expected = any(
            (cancel.request_id, cancel.tenant, cancel.session) == (request_id, "default", session)
            and accepted_at_ms <= at_ms + DEDUP_WINDOW_MS
            for cancel, at_ms in noted
        )
        found = book.find(request) is not None
        has_time = request.deadline_ms > newest_ms
        assert found == expected or (not has_time and expected)


def test_memory_is_bounded_by_time() -> None:
    book = CancelBook(MAX_AGE_S)
    for minute in range(500):
        book.note(Cancel(request_id=f"r{minute}"), NOW_MS + minute * 60_000)
    assert len(book) <= 60 + 10 + 2


def test_repeated_cancels_are_one_and_the_last_holds() -> None:
    book = CancelBook(MAX_AGE_S)
    for at_ms in (NOW_MS, NOW_MS + 60_000, NOW_MS - 60_000):
        book.note(Cancel(request_id="r"), at_ms)
    assert len(book) == 1
    assert book.find(envelope(at_ms=NOW_MS + 60_000 + DEDUP_WINDOW_MS)) is not None
