"""A record that cannot be decoded ends the request that its key and headers name, and none other."""

import pytest

from runtime.headers import record_headers
from runtime.tracing import Headers
from runtime.unreadable import envelope_of_unreadable
from schemas.envelope import Envelope

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def named(key: bytes | None, headers: Headers, timestamp_ms: int = 5_000) -> Envelope | None:
    return envelope_of_unreadable(key=key, headers=headers, timestamp_ms=timestamp_ms, max_age_s=60.0, lane="bulk")


@pytest.mark.parametrize("session", [None, "s-1"])
def test_a_record_of_ours_names_its_request(session: str | None) -> None:
    original = Envelope(
        request_id="headrace.requests-0-41",
        key=session or "headrace.requests-0-41",
        accepted_at_ms=1,
        deadline_ms=2,
        traceparent=TRACEPARENT,
        tenant="acme",
        session=session,
    )
    found = named(original.key.encode(), record_headers("turn", original, source="gate"))
    assert found is not None
    assert (found.request_id, found.key, found.session) == (original.request_id, original.key, session)
    assert (found.tenant, found.traceparent, found.priority_class) == ("acme", TRACEPARENT, "bulk")
    assert (found.accepted_at_ms, found.deadline_ms) == (5_000, 65_000)


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        pytest.param(None, [("ce_id", b"r-1")], id="no key"),
        pytest.param(b"", [("ce_id", b"r-1")], id="an empty key"),
        pytest.param(b"\xff", [("ce_id", b"r-1")], id="a key that is no text"),
        pytest.param(b"k" * 100_000, [("ce_id", b"r-1")], id="a key that fits no record beside itself"),
        pytest.param(b"r-1", [], id="no header"),
        pytest.param(b"r-1", [("ce_id", None)], id="a header without a value"),
        pytest.param(b"r-1", [("ce_id", b"\xff")], id="an id that is no text"),
        pytest.param(b"r-1", [("ce_id", b"i" * 100_000)], id="an id that is too long"),
        pytest.param(b"r-1", [("ce_id", b"r-1"), ("tenant", b"../x")], id="a tenant that is none"),
        pytest.param(b"no/session", [("ce_id", b"r-1")], id="a session that is none"),
    ],
)
def test_what_names_no_request_of_ours_has_no_envelope(key: bytes | None, headers: Headers) -> None:
    assert named(key, headers) is None


def test_headers_without_values_and_other_people_s_headers_are_passed_over() -> None:
    found = named(b"r-1", [("x", None), ("tenant", None), ("traceparent", None), ("ce_id", b"r-1"), ("é", b"\xff")])
    assert found is not None
    assert (found.request_id, found.tenant) == ("r-1", "default")


def test_a_time_that_no_broker_gives_has_no_envelope() -> None:
    assert named(b"r-1", [("ce_id", b"r-1")], timestamp_ms=2**62) is None
