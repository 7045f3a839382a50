"""The pipeline as a process that dies: SIGKILL in mid-stream, SIGTERM, a dead child."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from headrace.local.background import BackgroundStack
from schemas.settings import Settings
from tests.integration.pipeline_world import NUM_PARTITIONS, Process, World, settings_for
from tests.pipeline.builders import chat, turn

pytestmark = pytest.mark.integration

NUM_TURNS = 900
IDS = [f"r-{i}" for i in range(NUM_TURNS)]


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return settings_for(stack, namespace)


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    async with World(settings) as opened:
        yield opened


async def test_a_process_killed_in_mid_stream_loses_no_turn_and_its_children_end_with_it(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    """Twice; a turn may come out twice, in order each time, and the first ones are in the order of the inputs."""
    await world.write(*(turn(chat(), name) for name in IDS))
    for kill_after in (1, 300):
        process = Process(settings, tmp_path)
        await process.start()
        await world.read(lambda outputs, n=kill_after: len(outputs) >= n)  # type: ignore[misc]
        children = psutil.Process(process.process.pid).children(recursive=True)
        await process.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []
    last = Process(settings, tmp_path)
    await last.start()
    outputs = await world.read_all(IDS)
    for partition in range(NUM_PARTITIONS):
        end = await world.end(world.names.turns(), partition)
        await world.wait_committed(world.names.turns(), partition, end)
        first_seen = list(dict.fromkeys(o.request_id for o in outputs if o.partition == partition))
        assert first_seen == sorted(first_seen, key=lambda name: int(name[2:]))
    assert await last.stop() == 0


async def test_sigterm_finishes_what_was_taken_and_the_successor_repeats_nothing(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    await world.write(*(turn(chat(), name) for name in IDS[:500]))
    first, second = Process(settings, tmp_path), Process(settings, tmp_path)
    await first.start()
    await world.read(lambda outputs: len(outputs) >= 100)
    assert await first.stop() == 0
    await world.write(*(turn(chat(), name) for name in IDS[500:]))
    await second.start()
    outputs = await world.read_all(IDS)
    assert await second.stop() == 0
    assert sorted(output.request_id for output in outputs) == sorted(IDS)


async def test_children_killed_while_turns_come_cost_no_turn(world: World, settings: Settings, tmp_path: Path) -> None:
    process = Process(settings, tmp_path)
    await process.start()
    await world.write(*(turn(chat(), name) for name in IDS[:300]))
    await world.read(lambda outputs: len(outputs) >= 50)
    for child in psutil.Process(process.process.pid).children():
        if "resource_tracker" not in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
    outputs = await world.read_all(IDS[:300])
    assert await process.stop() == 0
    assert [type(output.member).__name__ for output in outputs] == ["Sequence"] * 300
