import pytest

from pipeline.refuse import refusal, refusal_of_unreadable, unknown_model
from runtime.headers import record_headers
from schemas.errors import ContextTooLong, MalformedRecord
from tests.pipeline.builders import chat, completion, envelope, turn

ERROR = MalformedRecord("garbage")


def test_a_refusal_carries_the_envelope_the_model_and_the_error_as_the_client_sees_it() -> None:
    refused = refusal(turn(chat(model="m")), ContextTooLong("too long", param="messages"))
    assert (refused.envelope, refused.model, refused.stage, refused.chat) == (envelope(), "m", "pipeline", True)
    assert (refused.error.code, refused.error.type) == ("context_length_exceeded", "invalid_request_error")
    assert (refused.error.message, refused.error.param) == ("too long", "messages")


def test_a_refused_completion_is_no_chat() -> None:
    assert not refusal(turn(completion()), ERROR).chat


def test_an_unknown_model_lists_the_known_ones() -> None:
    error = unknown_model("gpt-9", ["b", "a"])
    assert "'gpt-9'" in error.message
    assert "a, b" in error.message
    assert error.param == "model"


@pytest.mark.parametrize("session", [None, "s-1"])
def test_an_unreadable_record_still_ends_its_request(session: str | None) -> None:
    """Key and headers of a turn that the gate wrote name request, session, tenant and trace."""
    original = envelope("r-1", session=session, tenant="acme", priority_class="bulk")
    refused = refusal_of_unreadable(
        key=original.key.encode(),
        headers=record_headers("turn", original, source="gate"),
        timestamp_ms=5_000,
        max_age_s=60.0,
        lane="bulk",
        error=ERROR,
    )
    assert refused is not None
    found = refused.envelope
    assert (found.request_id, found.key, found.session) == ("r-1", original.key, session)
    assert (found.tenant, found.traceparent, found.priority_class) == ("acme", original.traceparent, "bulk")
    assert (found.accepted_at_ms, found.deadline_ms) == (5_000, 65_000)
    assert refused.error.code == "malformed_record"


@pytest.mark.parametrize(("key", "headers"), [(None, [("ce_id", b"r-1")]), (b"k", []), (b"", [("ce_id", b"r-1")])])
def test_a_record_that_names_no_request_has_no_refusal(key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    refused = refusal_of_unreadable(
        key=key, headers=headers, timestamp_ms=0, max_age_s=1.0, lane="interactive", error=ERROR
    )
    assert refused is None
