"""The pipeline against the real Kafka and S3, in this process."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
from aiokafka.admin import NewTopic
from mode.threads import WorkerThread

from headrace.local.background import BackgroundStack
from models.catalog import open_model
from models.prompt import build_prompt
from pipeline.intake import InputRecord, Intake
from pipeline.role import PipelineRole
from runtime.kafka import make_admin, make_producer
from runtime.storage import ObjectStore
from schemas.batches import Refusal, Sequence
from schemas.errors import BrokerUnavailable, ModelFileError, SettingsError
from schemas.settings import DEFAULT_MODEL, DEFAULT_MODEL_PATH, ModelSettings, Settings
from schemas.turns import BaseTurn
from tests.integration.pipeline_world import NUM_PARTITIONS, Output, World, running, settings_for
from tests.pipeline.builders import TRACEPARENT, chat, session_turn, turn

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return settings_for(stack, namespace)


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    async with World(settings) as opened:
        yield opened


def of_partition(outputs: list[Output], partition: int) -> list[str]:
    return [output.request_id for output in outputs if output.partition == partition]


async def test_a_turn_becomes_a_batch_in_its_own_partition_with_key_and_trace(world: World, settings: Settings) -> None:
    model = open_model(DEFAULT_MODEL, DEFAULT_MODEL_PATH)
    async with running(settings) as role:
        assert role.health().is_ready
        given = turn(chat("What is a headrace?", max_tokens=7), "r-1")
        await world.write(given, partition=2)
        (output,) = await world.read_all(["r-1"])
        await world.wait_committed(world.names.turns(), 2, 1)
    assert isinstance(output.member, Sequence)
    messages = [{"role": "user", "content": "What is a headrace?"}]
    assert output.member.prompt_token_ids == build_prompt(model.tokenizer, model.template, messages).token_ids
    assert (output.member.hashes, output.member.sampling.max_tokens) == (model.hashes, 7)
    assert (output.topic, output.partition, output.key) == (world.names.batches(DEFAULT_MODEL), 2, b"r-1")
    assert output.headers["traceparent"] == TRACEPARENT.encode()
    assert output.headers["ce_type"] == b"headrace.batch"
    assert not role.health().is_alive


async def test_lanes_stay_apart_and_refusals_find_their_topics(world: World, settings: Settings) -> None:
    async with running(settings):
        await world.write(turn(chat(), "bulk"), lane="bulk")
        await world.write(
            turn(chat(model="gpt-9"), "unknown"), turn(chat("word " * 9000), "long"), turn(chat(), "plain")
        )
        outputs = await world.read_all(["bulk", "unknown", "long", "plain"])
    topics = {output.request_id: output.topic for output in outputs}
    assert topics == {
        "bulk": world.names.batches(DEFAULT_MODEL, "bulk"),
        "unknown": world.names.refusals(),
        "long": world.names.batches(DEFAULT_MODEL),
        "plain": world.names.batches(DEFAULT_MODEL),
    }
    refused = {o.request_id: o.member.error.code for o in outputs if isinstance(o.member, Refusal)}
    assert refused == {"unknown": "model_not_found", "long": "context_length_exceeded"}


async def test_a_partition_keeps_its_order_while_many_turns_are_under_way(world: World, settings: Settings) -> None:
    ids = [f"r-{i}" for i in range(300)]
    async with running(settings):
        await world.write(*(turn(chat("word " * (i * 37 % 200)), f"r-{i}") for i in range(300)))
        outputs = await world.read_all(ids)
    assert sorted(output.request_id for output in outputs) == sorted(ids)
    for partition in range(NUM_PARTITIONS):
        found = of_partition(outputs, partition)
        assert found == sorted(found, key=lambda name: int(name[2:]))


async def test_a_session_goes_on_from_the_objects_of_its_turns(
    world: World, settings: Settings, namespace: str
) -> None:
    model = open_model(DEFAULT_MODEL, DEFAULT_MODEL_PATH)
    store = ObjectStore(settings.storage)
    keys = [f"{namespace}/sessions/t{i}" for i in (1, 2)]
    await store.put(keys[0], session_turn(1, [1, 10, 2], hashes=model.hashes))
    await store.put(keys[1], session_turn(2, [1, 20, 2], hashes=model.hashes, parent=keys[0]))
    store.close()
    async with running(settings):
        base = BaseTurn(turn=2, object=keys[1])
        await world.write(
            turn(chat("and then?"), "r-3", session="s-1", base=base),
            turn(chat("and then?"), "r-4", session="s-2", base=BaseTurn(turn=1, object=f"{namespace}/missing")),
        )
        outputs = {output.request_id: output.member for output in await world.read_all(["r-3", "r-4"])}
    sequence, refused = outputs["r-3"], outputs["r-4"]
    assert isinstance(sequence, Sequence)
    assert sequence.prompt_token_ids[:6] == [1, 10, 2, 1, 20, 2]
    assert (sequence.num_base_tokens, sequence.parent, sequence.envelope.turn) == (6, keys[1], 3)
    assert isinstance(refused, Refusal)
    assert refused.error.code == "session_unavailable"


async def test_while_object_storage_is_away_only_its_partitions_wait(
    world: World, settings: Settings, namespace: str
) -> None:
    """Nothing listens where storage should be; later a way to the real one is opened there."""
    model = open_model(DEFAULT_MODEL, DEFAULT_MODEL_PATH)
    store = ObjectStore(settings.storage)
    key = f"{namespace}/sessions/t1"
    await store.put(key, session_turn(1, [1, 10, 2], hashes=model.hashes))
    store.close()
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    away = msgspec.structs.replace(settings.storage, endpoint="{}:{}".format(*door.getsockname()), timeout_s=1.0)
    async with running(msgspec.structs.replace(settings, storage=away)) as role:
        await world.write(turn(chat(), "r-1", session="s-1", base=BaseTurn(turn=1, object=key)), partition=0)
        await world.write(turn(chat(), "behind"), partition=0)
        await world.write(turn(chat(), "elsewhere"), partition=1)
        outputs = await world.read_all(["elsewhere"])
        assert [output.request_id for output in outputs] == ["elsewhere"]
        assert role.health().is_ready
        assert await world.committed(world.names.turns(), 0) == 0
        async with forwarding(door, settings.storage.endpoint or ""):
            outputs = await world.read_all(["r-1", "behind"])
    assert of_partition(outputs, 0) == ["r-1", "behind"]


async def test_aborted_turns_are_not_forwarded_and_what_is_committed_passes_markers(
    world: World, settings: Settings, namespace: str
) -> None:
    """The gate writes session turns in transactions: markers lie between records and at the end."""
    gate = make_producer(settings.kafka, transactional_id=f"{namespace}.gate")
    await gate.start()
    async with running(settings):
        for i in range(30):
            await gate.begin_transaction()
            sent = [await gate.send(**world.record(turn(chat(), f"r-{i}-{k}"), partition=0)) for k in range(2)]
            await asyncio.gather(*sent)
            await (gate.abort_transaction() if i % 3 == 2 else gate.commit_transaction())
        await gate.stop()
        expected = [f"r-{i}-{k}" for i in range(30) if i % 3 != 2 for k in range(2)]
        outputs = await world.read_all(expected)
        assert of_partition(outputs, 0) == expected
        end = await world.end(world.names.turns(), 0)
        assert end == 30 * 3
        await world.wait_committed(world.names.turns(), 0, end)
    assert [output.request_id for output in world.outputs] == expected


@pytest.mark.parametrize(
    "value", [b"\xff\xfe{", None, b"", b'{"schema": "turn/1"}'], ids=["garbage", "none", "empty", "json"]
)
async def test_a_record_that_is_no_turn_stops_nothing(world: World, settings: Settings, value: bytes | None) -> None:
    async with running(settings):
        await world.write(turn(chat(), "r-0"), partition=0)
        await world.write_raw(value, key=b"k" if value is None else None, partition=0)
        await world.write(turn(chat(), "r-2"), partition=0)
        outputs = await world.read_all(["r-0", "r-2"])
        await world.wait_committed(world.names.turns(), 0, 3)
    assert [output.request_id for output in outputs] == ["r-0", "r-2"]


async def test_an_orderly_change_of_members_repeats_nothing_and_loses_nothing(world: World, settings: Settings) -> None:
    ids = [f"r-{i}" for i in range(600)]

    async def write_slowly() -> None:
        for start in range(0, 600, 20):
            await world.write(*(turn(chat(), name) for name in ids[start : start + 20]))
            await asyncio.sleep(0.05)

    async with running(settings):
        writing = asyncio.create_task(write_slowly())
        await world.read(lambda outputs: len(outputs) > 60)
        async with running(settings) as second:
            assert second.health().is_ready
            await world.read(lambda outputs: len(outputs) > 300)
        await writing
        outputs = await world.read_all(ids)
    assert sorted(output.request_id for output in outputs) == sorted(ids)
    for partition in range(NUM_PARTITIONS):
        found = of_partition(outputs, partition)
        assert found == sorted(found, key=lambda name: int(name[2:]))


async def test_a_successor_starts_behind_what_is_done(world: World, settings: Settings) -> None:
    for name in ("r-0", "r-1", "r-2"):
        async with running(settings):
            await world.write(turn(chat(), name), partition=0)
            await world.read_all([name])
    assert [output.request_id for output in world.outputs] == ["r-0", "r-1", "r-2"]


async def test_an_output_that_the_broker_refuses_ends_the_process_and_its_input_is_read_again(
    stack: BackgroundStack, namespace: str
) -> None:
    """A topic with a tiny limit stands for any send that fails for good."""
    settings = settings_for(stack, namespace)
    topic = f"{namespace}.batches.{DEFAULT_MODEL}"
    admin = make_admin(settings.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(topic, NUM_PARTITIONS, 1, topic_configs={"max.message.bytes": "200"})])
    await admin.close()
    async with World(settings) as world:
        role = PipelineRole(settings)
        await role.start()
        run = asyncio.create_task(role.run())
        await world.write(turn(chat(model="gpt-9"), "refused"), partition=0)
        await world.read_all(["refused"])
        await world.wait_committed(world.names.turns(), 0, 1)
        await world.write(turn(chat(), "r-1"), partition=0)
        with pytest.raises(BrokerUnavailable, match="not acknowledged"):
            await asyncio.wait_for(run, 30)
        assert not role.health().is_alive
        await role.stop()
        assert await world.committed(world.names.turns(), 0) == 1


async def test_a_fault_of_the_agent_acknowledges_nothing_and_ends_the_process(
    world: World, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust alone would commit the record that the agent raised on, and go on behind it."""
    take = Intake.take

    def stumble(self: Intake, record: InputRecord) -> None:
        if record.offset == 1:
            raise ZeroDivisionError("a fault of ours")
        take(self, record)

    monkeypatch.setattr(Intake, "take", stumble)
    role = PipelineRole(settings)
    await role.start()
    run = asyncio.create_task(role.run())
    await world.write(*(turn(chat(), f"r-{i}") for i in range(3)), partition=0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run, 30)
    await role.stop()
    assert await world.committed(world.names.turns(), 0) <= 1
    monkeypatch.undo()
    async with running(settings):
        await world.read_all(["r-0", "r-1", "r-2"])


async def test_missing_topics_are_named_at_once(settings: Settings) -> None:
    role = PipelineRole(settings)
    with pytest.raises(SettingsError, match=r"\.turns\.bulk.*headrace topics create"):
        await asyncio.wait_for(role.start(), 20)
    assert not role.health().is_ready


async def test_a_model_that_cannot_be_loaded_is_named_and_nothing_is_left_running(
    world: World, settings: Settings
) -> None:
    broken = {DEFAULT_MODEL: ModelSettings(path="nowhere.gguf")}
    role = PipelineRole(msgspec.structs.replace(settings, models=broken))
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf"):
        await asyncio.wait_for(role.start(), 20)
    assert left_running() == []


@pytest.mark.parametrize("delay_s", [0.0, 0.2, 0.4])
async def test_a_start_that_is_broken_off_leaves_nothing_running(
    world: World, settings: Settings, delay_s: float
) -> None:
    """As when SIGTERM comes early; the delay only chooses the place where it happens to be."""
    role = PipelineRole(settings)
    starting = asyncio.create_task(role.start())
    await asyncio.sleep(delay_s)
    starting.cancel()
    await asyncio.wait([starting])
    if not starting.cancelled():
        await role.stop()
    assert left_running() == []


async def test_it_leaves_logging_and_the_folder_it_runs_in_alone(
    world: World, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    before = (list(root.handlers), root.level, root.disabled)
    async with running(settings):
        await world.write(turn(chat(), "r-0"))
        await world.read_all(["r-0"])
    assert (list(root.handlers), root.level, root.disabled) == before
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - pathlib would be blocking here, says another rule


def left_running() -> list[str]:
    """Kafka client threads and child processes of this process."""
    threads = [thread.name for thread in threading.enumerate() if isinstance(thread, WorkerThread)]
    children = [_command(child) for child in psutil.Process().children(recursive=True)]
    return threads + [command for command in children if "spawn_main" in command]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ended while it was looked at
        return ""


class forwarding:  # noqa: N801 - used as a function
    """Opens `door`, a bound socket, as another way to `endpoint`."""

    def __init__(self, door: socket.socket, endpoint: str) -> None:
        self._door = door
        self._host, _, self._to = endpoint.partition(":")

    async def __aenter__(self) -> None:
        self._server = await asyncio.start_server(self._forward, sock=self._door)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._host, int(self._to))
        await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
