"""What is too large for a record on its way to a worker and from it, over objects in memory that may be away."""

import msgspec
import pytest

from consumers.worker.claims import WorkerClaims
from consumers.worker.results import result
from runtime.claims import ClaimStore
from schemas.claims import MAX_INLINE_BYTES, claim_for
from schemas.codec import RESULT
from schemas.contents import RESULT_CONTENTS, SEQUENCE_CONTENTS
from schemas.errors import ClaimDamaged, ClaimMissing
from schemas.names import Names
from schemas.requests import Message
from schemas.results import Result
from tests.consumers.worker.builders import ACCEPTED_AT_MS, running, sequence
from tests.pipeline.test_history import Storage

NAMES = Names()


def terminal_with(text: str) -> Result:
    request = running(sequence(tenant="acme"))
    request.choices[0].text = text
    request.choices[0].finish_reason = "stop"
    return result(request, request.ending, now_ms=ACCEPTED_AT_MS, build="b")


async def test_a_result_that_fits_a_record_needs_no_storage() -> None:
    storage = Storage({})
    storage.outages = 10**9
    terminal = terminal_with("x" * 1000)
    assert await WorkerClaims(ClaimStore(storage), NAMES).fitting(terminal, now_ms=0) is terminal


async def test_a_result_that_fits_no_record_leaves_its_content_in_an_object_however_long_that_takes() -> None:
    storage = Storage({})
    storage.outages = 2
    terminal = terminal_with("é" * MAX_INLINE_BYTES)
    sent = await WorkerClaims(ClaimStore(storage), NAMES).fitting(terminal, now_ms=0)
    assert len(RESULT.encode(sent)) < 2_000
    assert sent.claim is not None
    assert sent.claim.object.startswith("headrace/claims/acme/1970-01-01/")
    kept = (sent.status, sent.usage, sent.timings, sent.request_id, sent.sampling)
    assert kept == (terminal.status, terminal.usage, terminal.timings, terminal.request_id, terminal.sampling)
    assert RESULT_CONTENTS.joined(sent, storage.objects[sent.claim.object]) == terminal


async def test_the_same_result_leaves_the_same_object() -> None:
    storage = Storage({})
    claims = WorkerClaims(ClaimStore(storage), NAMES)
    for _ in range(2):
        await claims.fitting(terminal_with("x" * MAX_INLINE_BYTES), now_ms=0)
    assert len(storage.objects) == 1


async def test_a_claimed_sequence_is_whole_before_it_runs() -> None:
    given = sequence()
    given.messages = [Message(role="user", content="hi")]
    content = SEQUENCE_CONTENTS.taken(given)
    claim = claim_for(content, NAMES, tenant="default", now_ms=0)
    storage = Storage({claim.object: content})
    storage.outages = 2
    claims = WorkerClaims(ClaimStore(storage), NAMES)
    assert await claims.whole(SEQUENCE_CONTENTS.claimed(given, claim)) == given
    storage.objects[claim.object] = content.replace(b"hi", b"ho")
    with pytest.raises(ClaimDamaged):
        await claims.whole(SEQUENCE_CONTENTS.claimed(given, claim))
    del storage.objects[claim.object]
    with pytest.raises(ClaimMissing):
        await claims.whole(SEQUENCE_CONTENTS.claimed(given, claim))


async def test_an_object_of_another_kind_is_damage() -> None:
    content = msgspec.json.encode({"prompt_token_ids": "none"})
    claim = claim_for(content, NAMES, tenant="default", now_ms=0)
    claims = WorkerClaims(ClaimStore(Storage({claim.object: content})), NAMES)
    with pytest.raises(ClaimDamaged, match="does not hold"):
        await claims.whole(SEQUENCE_CONTENTS.claimed(sequence(), claim))
