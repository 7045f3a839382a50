"""Workers as processes that end in the middle of streams: every request keeps one result and one gapless stream."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.local.background import BackgroundStack
from schemas.batches import Sequence
from schemas.settings import Settings
from schemas.tokens import Admitted, Released
from tests.consumers.worker.live import Outside
from tests.consumers.worker.oracle import undisturbed
from tests.consumers.worker.processes import WorkerProcess
from tests.consumers.worker.settings import worker_settings
from tests.consumers.worker.tiny_model import MODEL_NAME, TinyModel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NUM_TOKENS = 250


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.write(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str, tiny: TinyModel) -> Settings:
    return worker_settings(stack, namespace, tiny, drain_timeout_s=0.2)


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


def requests(tiny: TinyModel, outside: Outside) -> list[Sequence]:
    """Requests of every kind in every partition, long enough to be hit in the middle."""
    kinds: list[dict[str, Any]] = [
        {"sampling": {"num_choices": 2}},
        {"sampling": {"temperature": 0.0}},
        {"chat": False},
        {"envelope": {"stream": False}},
        {"sampling": {"top_logprobs": 1}},
    ]
    names = [name for partition in (0, 1) for name in outside.ids_in(partition, len(kinds))]
    members = []
    for number, name in enumerate(names):
        kind = dict(kinds[number % len(kinds)])
        sampling = {"max_tokens": NUM_TOKENS + 10 * number, "seed": number} | kind.pop("sampling", {})
        members.append(tiny.member(name, sampling=sampling, prompt_token_ids=[1, 2, 3 + number], **kind))
    return members


def send(outside: Outside, members: list[Sequence]) -> None:
    """Some alone, some packed, some in the bulk lane."""
    for partition in (0, 1):
        first, second, *packed = [one for one in members if outside.partition_of(one.envelope.key) == partition]
        outside.send(first)
        outside.send(second, lane="bulk")
        outside.send(*packed)


async def check(outside: Outside, settings: Settings, tiny: TinyModel, members: list[Sequence]) -> None:
    """Each request has one result and one stream, and both say what they would have said undisturbed."""
    expected = await asyncio.to_thread(undisturbed, settings, tiny, members)
    for member in members:
        name = member.envelope.request_id
        result = await outside.result(name)
        stream = outside.stream(name)
        assert stream == expected[name]
        assert result.status == "completed"
        assert [choice.token_ids for choice in result.choices] == [stream[index].token_ids for index in sorted(stream)]
        assert [choice.content for choice in result.choices] == [stream[index].text for index in sorted(stream)]
        for choice in result.choices:
            given = [one.token_id for one in choice.logprobs or []]
            assert given == (choice.token_ids if member.sampling.top_logprobs is not None else [])
        assert len(outside.results_of(name)) == 1
        assert outside.duplicates_of(name) == []


async def both_work(outside: Outside, first: WorkerProcess, second: WorkerProcess) -> None:
    """Wait until the partitions are shared, and each worker has taken some over since."""
    await outside.until(lambda: {first.name, second.name} <= set(owners(outside).values()))
    await outside.until(lambda: len(owners(outside)) == len(outside.sources()))


def owners(outside: Outside) -> dict[str, str]:
    """Who has taken each source over last."""
    return {mark.source: mark.worker for mark in outside.takeovers()}


async def all_begun(outside: Outside, members: list[Sequence]) -> None:
    """Wait until every request runs and those that are streamed have said something."""
    for member in members:
        name = member.envelope.request_id
        await outside.until(lambda name=name: name in {mark.request_id for mark in admitted(outside)})  # type: ignore[misc]
        if member.envelope.stream:
            await outside.begun(name, 5)


def admitted(outside: Outside) -> list[Admitted]:
    return [record for _, record in outside.journal() if isinstance(record, Admitted)]


def released(outside: Outside) -> set[str]:
    return {record.request_id for _, record in outside.journal() if isinstance(record, Released)}


async def test_streams_go_on_elsewhere_when_a_worker_is_told_to_stop(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = requests(tiny, outside)
    async with WorkerProcess(settings) as leaving, WorkerProcess(settings) as staying:
        await both_work(outside, leaving, staying)
        send(outside, members)
        await all_begun(outside, members)
        leaving.signal(signal.SIGTERM)
        assert await leaving.ended() == 0
        await check(outside, settings, tiny, members)
        staying.signal(signal.SIGTERM)
        assert await staying.ended() == 0
    moved = {name for name in released(outside) if (await outside.result(name)).attempts == 2}
    assert moved
    assert moved == {mark.request_id for mark in admitted(outside) if mark.attempt == 1}


async def test_streams_go_on_elsewhere_when_a_worker_is_killed(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = requests(tiny, outside)
    async with WorkerProcess(settings) as dying, WorkerProcess(settings) as staying:
        await both_work(outside, dying, staying)
        send(outside, members)
        await all_begun(outside, members)
        dying.signal(signal.SIGKILL)
        assert await dying.ended() == -signal.SIGKILL
        await check(outside, settings, tiny, members)
    assert released(outside) == set()
    attempts = [(await outside.result(member.envelope.request_id)).attempts for member in members]
    assert max(attempts) == 2


async def test_what_a_frozen_worker_says_after_it_was_replaced_is_void(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = requests(tiny, outside)
    async with WorkerProcess(settings) as frozen, WorkerProcess(settings) as staying:
        await both_work(outside, frozen, staying)
        send(outside, members)
        await all_begun(outside, members)
        mine = {source for source, worker in owners(outside).items() if worker == frozen.name}
        frozen.signal(signal.SIGSTOP)
        await outside.until(lambda: {owners(outside)[source] for source in mine} == {staying.name})
        frozen.signal(signal.SIGCONT)
        await check(outside, settings, tiny, members)
        await outside.until(lambda: frozen.name in set(owners(outside).values()))
        assert frozen.process.returncode is None


async def test_a_worker_that_comes_back_under_its_name_goes_on_at_once(
    stack: BackgroundStack, namespace: str, tiny: TinyModel
) -> None:
    settings = worker_settings(stack, namespace, tiny, instance_id="w1")
    async with Outside(settings) as outside:
        members = requests(tiny, outside)
        async with WorkerProcess(settings) as first:
            await outside.taken_over("w1", outside.sources())
            send(outside, members)
            await all_begun(outside, members)
            first.signal(signal.SIGKILL)
            await first.ended()
        async with WorkerProcess(settings):
            await check(outside, settings, tiny, members)
        marks = [mark for mark in outside.takeovers() if mark.source == f"{outside.names.batches(MODEL_NAME)}-0"]
        assert [mark.worker for mark in marks] == ["w1", "w1"]
        assert marks[1].previous_epoch is not None
