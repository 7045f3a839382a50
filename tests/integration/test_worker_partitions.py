"""What becomes of a worker's partitions when the group, another process or the broker interferes, seen from inside."""

import asyncio
import threading
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # public names that its stubs do not re-export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from consumers.worker.group import PartitionGroup
from consumers.worker.partition import OwnedPartition
from headrace.local.background import BackgroundStack
from runtime.kafka import make_consumer, make_producer
from schemas.batches import Sequence
from schemas.errors import Fenced
from schemas.settings import Settings
from schemas.tokens import Takeover
from tests.consumers.worker.live import Outside, until
from tests.consumers.worker.oracle import undisturbed
from tests.consumers.worker.processes import WorkerHere
from tests.consumers.worker.settings import worker_settings
from tests.consumers.worker.tiny_model import MODEL_NAME, TinyModel

pytestmark = pytest.mark.integration

LONG = 120


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.write(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str, tiny: TinyModel) -> Settings:
    return worker_settings(stack, namespace, tiny)


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


def long_requests(tiny: TinyModel, outside: Outside, num_tokens: int = LONG) -> list[Sequence]:
    """One request in each partition."""
    names = [name for partition in (0, 1) for name in outside.ids_in(partition, 1)]
    return [tiny.member(name, sampling={"max_tokens": num_tokens}) for name in names]


async def begin(outside: Outside, members: list[Sequence]) -> None:
    for member in members:
        outside.send(member)
    for member in members:
        await outside.begun(member.envelope.request_id, 5)


async def check(outside: Outside, settings: Settings, tiny: TinyModel, members: list[Sequence]) -> None:
    """Each request has one result and the stream that it would have had undisturbed."""
    expected = await asyncio.to_thread(undisturbed, settings, tiny, members)
    for member in members:
        name = member.envelope.request_id
        result = await outside.result(name)
        assert result.status == "completed"
        assert outside.stream(name) == expected[name]
        assert result.choices[0].token_ids == expected[name][0].token_ids
        assert len(outside.results_of(name)) == 1


async def fence(outside: Outside, topic: str, partition: int) -> None:
    """Do what a second process under our transactional id would do."""
    transactional_id = outside.names.transactional_id(outside.worker_group, topic, partition)
    producer = make_producer(outside.settings.kafka, transactional_id=transactional_id)
    await producer.start()
    await producer.stop()


async def another_member(outside: Outside) -> AIOKafkaConsumer:
    """A consumer that joins the workers' group and takes its share of the partitions, without working on them."""
    consumer = make_consumer(outside.settings.kafka, group=outside.worker_group)
    consumer.subscribe([outside.names.batches(MODEL_NAME), outside.names.batches(MODEL_NAME, "bulk")])
    await consumer.start()
    while not consumer.assignment():
        await consumer.getmany(timeout_ms=50)
    return consumer


def group_of(worker: WorkerHere) -> PartitionGroup:
    return worker.role._groups[0]


def owned(worker: WorkerHere, outside: Outside, partition: int) -> OwnedPartition | None:
    return group_of(worker).keeper.settled(TopicPartition(outside.names.batches(MODEL_NAME), partition))


def takeovers(outside: Outside, partition: int) -> list[Takeover]:
    source = f"{outside.names.batches(MODEL_NAME)}-{partition}"
    return [mark for mark in outside.takeovers() if mark.source == source]


async def test_a_partition_that_was_fenced_is_taken_over_anew_and_its_stream_goes_on(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = long_requests(tiny, outside)
    async with WorkerHere(settings, at_pace=True):
        await begin(outside, members)
        await fence(outside, outside.names.batches(MODEL_NAME), 0)
        await check(outside, settings, tiny, members)
    assert [len(takeovers(outside, partition)) for partition in (0, 1)] == [2, 1]
    assert (await outside.result(members[0].envelope.request_id)).attempts == 2
    assert (await outside.result(members[1].envelope.request_id)).attempts == 1


async def test_a_worker_whose_partition_is_fenced_again_and_again_ends(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = long_requests(tiny, outside, num_tokens=3_000)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, members)
        await fence(outside, outside.names.batches(MODEL_NAME), 0)
        await outside.until(lambda: len(takeovers(outside, 0)) == 2)
        await fence(outside, outside.names.batches(MODEL_NAME), 0)
        assert worker.running is not None
        with pytest.raises(Fenced):
            await worker.running


async def test_partitions_that_a_rebalance_leaves_with_us_go_on_where_they_were(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = long_requests(tiny, outside, num_tokens=3 * LONG)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, members)
        other = await another_member(outside)
        lost = {tp.partition for tp in other.assignment() if tp.topic == outside.names.batches(MODEL_NAME)}
        await other.stop()
        await check(outside, settings, tiny, members)
        await outside.until(lambda: not group_of(worker).is_rebalancing)
    for partition in (0, 1):
        assert len(takeovers(outside, partition)) == (2 if partition in lost else 1)


async def test_a_partition_that_was_fenced_while_a_rebalance_left_it_with_us_is_taken_over_anew(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    async with WorkerHere(settings, at_pace=True) as worker:
        await outside.taken_over(worker.name, outside.sources())
        # Nothing runs, so nothing is committed: only the proof after the rebalance can notice.
        for partition in (0, 1):
            await fence(outside, outside.names.batches(MODEL_NAME), partition)
        other = await another_member(outside)
        lost = {tp.partition for tp in other.assignment() if tp.topic == outside.names.batches(MODEL_NAME)}
        assert lost != {0, 1}
        await outside.until(lambda: all(len(takeovers(outside, kept)) == 2 for kept in {0, 1} - lost))
        await other.stop()
        members = long_requests(tiny, outside)
        await begin(outside, members)
        await check(outside, settings, tiny, members)


async def test_partitions_that_a_rebalance_gives_to_a_leaving_worker_are_let_go_of_as_well(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = long_requests(tiny, outside)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, members)
        group = group_of(worker)
        leaving = asyncio.create_task(group.keeper.release_all())
        await asyncio.sleep(0)
        group.on_partitions_revoked(())
        group.on_partitions_assigned(group._consumer.assignment())
        await leaving
        assert group.keeper.num_open == {}
        assert worker.running is not None
        worker.running.cancel()


async def test_a_record_that_is_delivered_again_is_dropped(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    (member, _) = long_requests(tiny, outside)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, [member])
        place = outside.send(tiny.member(outside.ids_in(0, 2)[1]))
        reader = make_consumer(settings.kafka)
        await reader.start()
        partition = owned(worker, outside, 0)
        assert partition is not None
        tp = partition.tp
        reader.assign([tp])
        await reader.seek_to_beginning(tp)
        again = (await reader.getmany(tp, timeout_ms=10_000))[tp]
        await reader.stop()
        for record in again:
            partition.accept(record)
        await check(outside, settings, tiny, [member])
        await outside.until_committed(place)
    assert outside.duplicates_of(member.envelope.request_id) == []


async def test_a_failed_send_leaves_no_gap_and_no_repeat(
    stack: BackgroundStack, settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = long_requests(tiny, outside, num_tokens=3 * LONG)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, members)
        # The broker refuses what it took a moment before: deltas fail, and so do takeovers until it takes them again.
        limit(stack, outside.names.tokens, max_bytes=100)
        await until(lambda: None in {owned(worker, outside, 0), owned(worker, outside, 1)})
        limit(stack, outside.names.tokens, max_bytes=1_048_588)
        await check(outside, settings, tiny, members)
        assert worker.running is not None
        assert not worker.running.done()
    assert any(len(takeovers(outside, partition)) > 1 for partition in (0, 1))


def limit(stack: BackgroundStack, topic: str, *, max_bytes: int) -> None:
    """Set how large a batch of records the topic takes."""
    entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


async def test_a_worker_that_is_told_to_stop_lets_what_runs_finish(
    settings: Settings, outside: Outside, tiny: TinyModel
) -> None:
    members = long_requests(tiny, outside)
    async with WorkerHere(settings, at_pace=True):
        await begin(outside, members)
    await check(outside, settings, tiny, members)
    assert {(await outside.result(member.envelope.request_id)).attempts for member in members} == {1}


async def test_a_step_of_the_engine_that_fails_ends_its_requests_with_the_error(
    outside: Outside, tiny: TinyModel, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = long_requests(tiny, outside, num_tokens=3_000)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, members)
        with monkeypatch.context() as broken:
            broken.setattr(worker.engine._engine.executor, "run", failing)
            results = [await outside.result(member.envelope.request_id) for member in members]
        assert worker.role.health().is_alive
        fine = tiny.member("fine")
        outside.send(fine)
        await check(outside, settings, tiny, [fine])
    for result in results:
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "engine_fault")
        stream = outside.stream(result.request_id)[0]
        assert stream.finish_reasons == ["error"]
        assert stream.token_ids == result.choices[0].token_ids
        assert len(stream.token_ids) == result.usage.completion_tokens


async def test_a_worker_whose_engine_dies_ends_and_its_requests_go_on_elsewhere(
    outside: Outside, tiny: TinyModel, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = long_requests(tiny, outside)
    async with WorkerHere(settings, at_pace=True) as worker:
        await begin(outside, members)
        monkeypatch.setattr(worker.engine._engine, "step", failing)
        members.append(tiny.member("late"))
        outside.send(members[-1])
        assert worker.running is not None
        with pytest.raises(ZeroDivisionError):
            await worker.running
    async with WorkerHere(settings, at_pace=True):
        await check(outside, settings, tiny, members)


async def test_health_says_what_a_worker_is_doing(
    outside: Outside, tiny: TinyModel, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    impatient = msgspec.structs.replace(settings.worker, step_stall_s=0.5)
    worker = WorkerHere(msgspec.structs.replace(settings, worker=impatient), at_pace=True)
    assert (worker.role.health().is_alive, worker.role.health().is_ready) == (True, False)
    async with worker:
        await until(lambda: worker.role.health().is_ready)
        run = worker.engine._engine.executor.run
        monkeypatch.setattr(worker.engine._engine.executor, "run", lambda plan: hanging.wait(60) and run(plan))
        outside.send(tiny.member("r1"))
        await until(lambda: not worker.role.health().is_alive)
        assert "engine" in worker.role.health().detail
        hanging.set()


def failing(*_: object) -> None:
    raise ZeroDivisionError("planted")
