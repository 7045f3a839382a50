"""Cancels at a real worker: whatever the request does just then, it ends once, and its memory is free."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from headrace.local.background import BackgroundStack
from schemas.codec import RESULT
from schemas.results import Result
from schemas.settings import EngineSettings, Settings
from schemas.tokens import Admitted, Ended, TokenDelta
from tests.consumers.cancelling import GARBAGE, written
from tests.consumers.worker.live import Outside, until
from tests.consumers.worker.processes import WorkerHere, WorkerProcess
from tests.consumers.worker.settings import worker_settings
from tests.consumers.worker.tiny_model import TinyModel

# One worker serves most tests of this file: each uses request ids of its own.
pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

LONG = {"max_tokens": 4_000}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def settings(stack: BackgroundStack, tiny: TinyModel) -> Settings:
    # Two run at a time: what comes third is queued in the engine.
    found = worker_settings(stack, f"t{uuid4().hex[:8]}", tiny)
    engine = EngineSettings(dtype="float32", kv_bytes=64 << 20, num_threads=1, max_running=2)
    return msgspec.structs.replace(found, engine=engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(settings: Settings, outside: Outside) -> AsyncIterator[WorkerHere]:
    async with WorkerHere(settings, at_pace=True) as running:
        await outside.taken_over(running.name, outside.sources())
        yield running


@pytest.fixture
def name() -> str:
    """A request id that no other test uses."""
    return uuid4().hex[:8]


def cancel(outside: Outside, request_id: str, *, partition: int | None = None, **fields: Any) -> None:
    key, value = written(request_id, **fields)
    place = outside.partition_of(key.decode()) if partition is None else partition
    outside.send_raw(outside.names.control, value, key=key, partition=place)


async def cancelled(outside: Outside, request_id: str) -> Result:
    """The result of a request that was cancelled: what it says is what was streamed."""
    result = await outside.result(request_id)
    assert result.status == "cancelled"
    stream = outside.stream(request_id)
    for choice in result.choices:
        assert (choice.token_ids, choice.content) == (stream[choice.index].token_ids, stream[choice.index].text)
        assert stream[choice.index].finish_reasons == [choice.finish_reason]
    assert outside.results_of(request_id) == [result]
    return result


async def until_free(worker: WorkerHere) -> None:
    """No sequence is left in the engine, and all of its memory is free."""
    await until(lambda: worker.engine.stats.num_running + worker.engine.stats.num_waiting == 0)
    stats = worker.engine.stats
    assert (stats.kv_blocks_used, stats.kv_blocks_free + stats.kv_blocks_cached) == (0, stats.kv_blocks_total)


async def test_a_running_request_ends_with_what_it_has_said(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    place = outside.send(tiny.member(name, sampling=LONG))
    await outside.begun(name, 5)
    cancel(outside, name, reason="enough")
    result = await cancelled(outside, name)
    assert 5 <= result.usage.completion_tokens < 4_000
    assert result.usage.prompt_tokens == 3
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("cancelled", "the request was cancelled: enough")
    assert [delta.status for delta in outside.deltas(name) if delta.usage] == ["cancelled"]
    kinds = [type(record) for seen, record in outside.journal() if seen.key == name.encode()]
    assert kinds[-1] is Ended
    await outside.until_committed(place)
    await until_free(worker)


async def test_a_queued_request_ends_before_its_first_token(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    first, second, queued = outside.ids_in(0, 3, prefix=name)
    for request_id in (first, second):
        outside.send(tiny.member(request_id, sampling=LONG))
        await outside.begun(request_id)
    outside.send(tiny.member(queued, sampling=LONG))
    await until(lambda: worker.engine.stats.num_waiting == 1)
    cancel(outside, queued)
    assert (await cancelled(outside, queued)).usage.completion_tokens == 0
    assert not outside.results_of(first) + outside.results_of(second)
    cancel(outside, first)
    cancel(outside, second)
    await cancelled(outside, first)
    await cancelled(outside, second)
    await until_free(worker)


async def test_a_request_that_comes_after_its_cancel_is_not_run(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    cancel(outside, name, partition=1 - outside.partition_of(name))
    await until(lambda: worker.role._control is not None and len(worker.role._control.book) > 0)
    control = worker.role._control
    assert control is not None
    member = tiny.member(name)
    await until(lambda: control.book.find(member.envelope) is not None)
    place = outside.send(member)
    assert (await cancelled(outside, name)).usage.completion_tokens == 0
    assert not [record for _, record in outside.journal() if isinstance(record, Admitted) and record.request_id == name]
    await outside.until_committed(place)


async def test_of_many_choices_those_that_have_ended_stay_as_they_are(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    """The first token of a choice, unlike the others', is the one that stops it."""
    outside.send(tiny.member(f"{name}.probe", sampling={"num_choices": 4, "max_tokens": 1}))
    probe = await outside.result(f"{name}.probe")
    first_tokens = [choice.token_ids[0] for choice in probe.choices]
    stop = next(token for token in first_tokens if first_tokens.count(token) == 1)
    outside.send(tiny.member(name, sampling={**LONG, "num_choices": 4, "stop_token_ids": [stop]}))
    ended = first_tokens.index(stop)
    await outside.until(lambda: bool(outside.stream(name).get(ended) and outside.stream(name)[ended].finish_reasons))
    cancel(outside, name)
    result = await cancelled(outside, name)
    assert result.choices[ended].finish_reason == "stop"
    reasons = [choice.finish_reason for choice in result.choices]
    assert set(reasons) <= {"stop", "cancelled"}
    assert "cancelled" in reasons
    await until_free(worker)


async def test_a_cancel_that_comes_too_late_changes_nothing(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    outside.send(tiny.member(name))
    result = await outside.result(name)
    cancel(outside, name)
    outside.send(tiny.member(f"{name}.2"))
    assert (await outside.result(f"{name}.2")).status == "completed"
    repeat = outside.send(tiny.member(name))
    await outside.until(lambda: len(outside.duplicates_of(name)) == 1)
    await outside.until_committed(repeat)
    assert outside.results_of(name) == [result]


async def test_a_cancel_of_another_tenant_or_session_is_nobodys(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    session = f"{name}.s"
    outside.send(tiny.member(name, sampling=LONG, envelope={"key": session, "session": session}))
    await outside.until(lambda: bool(outside.deltas(name)))
    cancel(outside, name, tenant="other", session=session)
    cancel(outside, name, session="other")
    cancel(outside, name)
    cancel(outside, f"{name}.2", session=session)
    cancel(outside, f"{name}.3")  # read behind the others
    control = worker.role._control
    assert control is not None
    await until(lambda: control.book.find(tiny.member(f"{name}.3").envelope) is not None)
    assert not outside.results_of(name)
    cancel(outside, name, session=session)
    result = await outside.result(name)
    assert (result.status, result.session) == ("cancelled", session)


async def test_what_is_no_cancel_stops_nobody(worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str) -> None:
    for partition in (0, 1):
        for value in GARBAGE:
            outside.send_raw(outside.names.control, value, key=None, partition=partition)
    outside.send(tiny.member(name, sampling=LONG))
    await outside.begun(name)
    _, value = written(name)
    outside.send_raw(outside.names.control, value, key=None, partition=0)
    await cancelled(outside, name)


async def test_many_cancels_at_any_moment_leave_nothing_behind(
    stack: BackgroundStack, namespace: str, tiny: TinyModel
) -> None:
    dice = random.Random(namespace)
    names = [f"r{number}" for number in range(200)]
    async with Outside(worker_settings(stack, namespace, tiny)) as outside, WorkerHere(outside.settings) as worker:
        for request_id in names:
            sampling = {"max_tokens": dice.randint(1, 60), "num_choices": dice.choice([1, 1, 1, 4])}
            outside.send(tiny.member(request_id, sampling=sampling), lane=dice.choice(["interactive", "bulk"]))
            if dice.random() < 0.5:
                cancel(outside, dice.choice(names))
            await asyncio.sleep(0)
        for request_id in dice.sample(names, 100):
            cancel(outside, request_id)
            await asyncio.sleep(dice.random() * 0.01)
        await outside.until(lambda: len(outside.of(outside.names.results)) >= len(names))
        await until_free(worker)
        # Decoded once: each question to `outside` would decode all of it again.
        results = [RESULT.decode(seen.value) for seen in outside.of(outside.names.results)]
        ends = {result.request_id: result for result in results if isinstance(result, Result)}
        assert len(results) == len(names) == len(ends)
        assert {result.status for result in ends.values()} == {"completed", "cancelled"}
        streamed: dict[tuple[str, int], list[int]] = {}
        await outside.until(lambda: sum(b'"ended/1"' in seen.value for seen in outside.seen) == len(names))
        for _, record in outside.journal():
            if isinstance(record, TokenDelta):
                streamed.setdefault((record.request_id, record.choice), []).extend(record.token_ids)
        answered = {(end.request_id, choice.index): choice.token_ids for end in ends.values() for choice in end.choices}
        assert streamed == answered


@pytest.mark.parametrize("is_begun", [True, False], ids=["begun", "untouched"])
async def test_a_cancel_that_a_killed_worker_did_not_live_to_answer_is_answered_by_the_next(
    settings: Settings, namespace: str, tiny: TinyModel, *, is_begun: bool
) -> None:
    settings = msgspec.structs.replace(settings, topics=msgspec.structs.replace(settings.topics, namespace=namespace))
    async with Outside(settings) as outside:
        if is_begun:
            async with WorkerProcess(settings) as first:
                outside.send(tiny.member("r", sampling=LONG))
                await outside.begun("r", 10)
                first.signal(signal.SIGKILL)
                await first.ended()
        else:
            outside.send(tiny.member("r", sampling=LONG))
        cancel(outside, "r", partition=0)
        async with WorkerHere(settings):
            result = await cancelled(outside, "r")
        assert (result.usage.completion_tokens >= 10) == is_begun
        admitted = [record for _, record in outside.journal() if isinstance(record, Admitted)]
        assert len(admitted) == int(is_begun)
