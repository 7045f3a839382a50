"""What the gate decides of requests that do not fit a record, and of those whose client has seen to that itself."""

from typing import Any

import msgspec
import pytest

from consumers.gate.admission import Decision, Deposit, Forward, Refuse, admit
from consumers.gate.arrival import Arrival
from schemas.bodies import join_body
from schemas.claims import MAX_INLINE_BYTES, ClaimCheck, claim_for
from schemas.codec import TURN, decode_request
from schemas.names import Names
from tests.consumers.gate.builders import NOW_MS, RULES, arrival, chat, encoded

OWN = claim_for(b"{}", RULES.names, tenant="default", now_ms=NOW_MS)


def decide(record: Arrival, *, now_ms: float = NOW_MS) -> Decision:
    return admit(record, RULES, now_ms=now_ms)


def refusal(record: Arrival, *, now_ms: float = NOW_MS) -> Refuse:
    decision = decide(record, now_ms=now_ms)
    assert isinstance(decision, Refuse)
    return decision


def forward(record: Arrival) -> Forward:
    decision = decide(record)
    assert isinstance(decision, Forward)
    return decision


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(chat("x" * MAX_INLINE_BYTES, id="r1"), id="text"),
        # Four bytes of JSON become nine of MessagePack.
        pytest.param(chat(id="r1", x=[0.5] * (MAX_INLINE_BYTES // 8)), id="floats"),
        pytest.param(chat(id="r1", metadata={"pad": "x" * 700_000}, tools=[], tomorrow=[1]), id="metadata"),
        pytest.param({"id": "r1", "model": "m", "prompt": [9_000] * 250_000}, id="ids"),
        pytest.param(chat(id="r1", **{f"field-{n}": "x" * 90 for n in range(8_000)}), id="many small fields"),
    ],
)
def test_of_a_request_that_does_not_fit_a_record_the_heavy_fields_go_into_an_object(body: dict[str, Any]) -> None:
    record = arrival(encoded(body), key=b"r1")
    decision = decide(record)
    assert isinstance(decision, Deposit)
    assert len(decision.value) < MAX_INLINE_BYTES
    assert decision.claim == claim_for(decision.content, RULES.names, tenant="default", now_ms=NOW_MS)
    assert TURN.decode(decision.value) == decision.turn
    assert decision.turn.request.claim == decision.claim
    inline = msgspec.to_builtins(decision.turn.request) | decision.turn.unknown_fields
    assert join_body(inline, decision.content) == decode_request(record.value)
    # Decided again by the next owner it is the same object.
    assert decide(record) == decision


def claimed(**fields: Any) -> dict[str, Any]:
    """The body of a request whose messages its client has put into an object."""
    claim = claim_for(b'{"messages": []}', RULES.names, tenant="default", now_ms=NOW_MS)
    return {"id": "r1", "model": "m", "kind": "chat", "claim": msgspec.to_builtins(claim), **fields}


@pytest.mark.parametrize("days", [-1, 0, 1])
def test_a_claim_of_a_client_is_passed_on_unread(days: int) -> None:
    claim = claim_for(b"{}", RULES.names, tenant="default", now_ms=NOW_MS + days * 86_400_000)
    turn = forward(arrival(encoded(claimed(claim=msgspec.to_builtins(claim))), key=b"r1")).turn
    assert turn.request.claim == claim
    assert getattr(turn.request, "messages", None) == []


OTHERS = [
    claim_for(b"{}", RULES.names, tenant="acme", now_ms=NOW_MS),
    claim_for(b"{}", RULES.names, tenant="default", now_ms=NOW_MS + 3 * 86_400_000),
    claim_for(b"{}", RULES.names, tenant="default", now_ms=0),
    claim_for(b"{}", Names("another"), tenant="default", now_ms=NOW_MS),
    msgspec.structs.replace(OWN, object="headrace/sessions/acme/s1/000001-r0.json"),
    msgspec.structs.replace(OWN, object=OWN.object.replace("claims/default", "claims/default/../acme")),
    msgspec.structs.replace(OWN, sha256="0" * 64),
]


@pytest.mark.parametrize("claim", OTHERS, ids=lambda claim: claim.object[:40])
def test_a_claim_on_what_is_not_the_tenants_own_is_refused(claim: ClaimCheck) -> None:
    error = refusal(arrival(encoded(claimed(claim=msgspec.to_builtins(claim))), key=b"r1")).result.error
    assert error is not None
    assert (error.code, error.param) == ("invalid_value", "claim.object")


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"kind": None}, "invalid_value", "kind"),
        ({"claim": None}, "invalid_value", "messages"),
        ({"claim": {**msgspec.to_builtins(OWN), "num_bytes": 1 << 40}}, "request_too_large", "claim.num_bytes"),
        ({"claim": {**msgspec.to_builtins(OWN), "num_bytes": -1}}, "invalid_value", "claim.num_bytes"),
        ({"metadata": {"pad": "x" * 700_000}}, "request_too_large", None),
    ],
)
def test_a_claim_that_cannot_work_is_refused_at_once(changed: dict[str, Any], code: str, param: str | None) -> None:
    error = refusal(arrival(encoded(claimed(**changed)), key=b"r1")).result.error
    assert error is not None
    assert (error.code, error.param) == (code, param)


def test_a_large_request_that_is_late_is_not_put_anywhere() -> None:
    record = arrival(encoded(chat("x" * MAX_INLINE_BYTES, id="r1", ttl_s=1)), key=b"r1")
    assert refusal(record, now_ms=NOW_MS + 1_000).result.status == "expired"
