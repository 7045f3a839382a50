"""Sequences and results that do not fit a record, at a real worker beside a storage that goes away."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from headrace.local.background import BackgroundStack
from runtime.storage import ObjectStore
from schemas.batches import Sequence
from schemas.claims import claim_for
from schemas.contents import RESULT_CONTENTS, SEQUENCE_CONTENTS
from schemas.requests import Message
from schemas.results import Result
from schemas.settings import Settings
from tests.consumers.gate.door import Door
from tests.consumers.worker.live import Outside
from tests.consumers.worker.oracle import undisturbed
from tests.consumers.worker.processes import WorkerHere, WorkerProcess
from tests.consumers.worker.settings import worker_settings
from tests.consumers.worker.tiny_model import TinyModel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# An answer with all of this has some 700 kB.
MUCH: dict[str, Any] = {"num_choices": 8, "top_logprobs": 20, "max_tokens": 160}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.write(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def door(stack: BackgroundStack) -> AsyncIterator[Door]:
    async with Door(str(stack.s3.endpoint)) as opened:
        yield opened


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str, tiny: TinyModel, door: Door) -> Settings:
    """The worker reaches storage through the door."""
    direct = worker_settings(stack, namespace, tiny, drain_timeout_s=0.2)
    return msgspec.structs.replace(
        direct, storage=msgspec.structs.replace(direct.storage, endpoint=door.endpoint, timeout_s=1.0)
    )


@pytest.fixture
def objects(stack: BackgroundStack) -> Iterator[ObjectStore]:
    store = ObjectStore(stack.s3)
    yield store
    store.close()


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


async def claimed(sequence: Sequence, outside: Outside, objects: ObjectStore, *, is_put: bool = True) -> Sequence:
    """The sequence as the pipeline sends it where it is too large for a record."""
    content = SEQUENCE_CONTENTS.taken(sequence)
    claim = claim_for(content, outside.names, tenant="default", now_ms=time.time() * 1000)
    if is_put:
        await objects.put(claim.object, content)
    return SEQUENCE_CONTENTS.claimed(sequence, claim)


async def whole(result: Result, objects: ObjectStore) -> Result:
    assert result.claim is not None
    return RESULT_CONTENTS.joined(result, await objects.get(result.claim.object))


def is_streamed(outside: Outside, name: str, *, num_choices: int) -> bool:
    """Whether the last delta of each choice is in the log."""
    choices = outside.stream(name).values()
    return len(choices) == num_choices and all(choice.finish_reasons for choice in choices)


async def test_a_claimed_sequence_is_answered_as_one_that_travelled_whole(
    settings: Settings, outside: Outside, tiny: TinyModel, objects: ObjectStore
) -> None:
    given = tiny.member("large", messages=[Message(role="user", content="hi")], num_base_tokens=1, parent="object")
    expected = await asyncio.to_thread(undisturbed, settings, tiny, [given])
    async with WorkerHere(settings):
        outside.send(await claimed(given, outside, objects))
        result = await outside.result("large")
    assert outside.stream("large") == expected["large"]
    assert (result.prompt_token_ids, result.messages, result.num_base_tokens) == (
        given.prompt_token_ids,
        given.messages,
        1,
    )
    assert result.usage.prompt_tokens == len(given.prompt_token_ids)


async def test_while_storage_is_away_only_those_wait_who_need_it_and_each_until_its_deadline(
    settings: Settings, outside: Outside, tiny: TinyModel, objects: ObjectStore, door: Door
) -> None:
    asking, late, saying, *others = outside.ids_in(0, 6)
    async with WorkerHere(settings):
        door.shut()
        outside.send(await claimed(tiny.member(asking), outside, objects))
        soon = {"deadline_ms": int(time.time() * 1000) + 2_000}
        outside.send(await claimed(tiny.member(late, envelope=soon), outside, objects))
        outside.send(tiny.member(saying, sampling=MUCH))
        for name in others:
            outside.send(tiny.member(name))
        assert [(await outside.result(name)).status for name in others] == ["completed"] * 3
        assert (await outside.result(late)).status == "expired"
        await outside.begun(saying, 160)
        assert not outside.results_of(asking)
        assert not outside.results_of(saying)
        door.open()
        assert (await outside.result(asking)).status == "completed"
        assert len((await whole(await outside.result(saying), objects)).choices) == 8


async def test_a_claim_that_leads_nowhere_ends_its_request_and_no_other(
    settings: Settings, outside: Outside, tiny: TinyModel, objects: ObjectStore
) -> None:
    lost, fine = outside.ids_in(0, 2)
    async with WorkerHere(settings):
        outside.send(await claimed(tiny.member(lost), outside, objects, is_put=False), tiny.member(fine))
        result = await outside.result(lost)
        assert (await outside.result(fine)).status == "completed"
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "claim_missing")
    (choice,) = outside.stream(lost).values()
    assert choice.finish_reasons == ["error"]


async def test_a_worker_killed_while_a_result_waits_for_storage_is_followed_by_one_that_writes_the_same(
    settings: Settings, outside: Outside, tiny: TinyModel, objects: ObjectStore, door: Door
) -> None:
    (name,) = outside.ids_in(0, 1)
    given = tiny.member(name, sampling=MUCH)
    expected = await asyncio.to_thread(undisturbed, settings, tiny, [given])
    async with WorkerProcess(settings) as worker:
        door.shut()
        outside.send(given)
        # Every delta is in the log; nothing says yet that the request has ended.
        await outside.until(lambda: is_streamed(outside, name, num_choices=8))
        while not any("storage_unavailable" in line for line in worker.lines):  # noqa: ASYNC110 (its log tells nobody)
            await asyncio.sleep(0.02)
        worker.process.kill()
        await worker.ended()
    door.open()
    async with WorkerHere(settings):
        result = await whole(await outside.result(name), objects)
    assert outside.stream(name) == expected[name]
    assert [choice.token_ids for choice in result.choices] == [expected[name][n].token_ids for n in range(8)]
    assert [len(choice.logprobs or []) for choice in result.choices] == [160] * 8
    assert len(outside.results_of(name)) == 1
