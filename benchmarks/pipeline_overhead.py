"""Tokens a second through Kafka as a share of the bare engine, on the same 64 requests at once.

The engine is pinned to one core in both and everything else to the other, so that the share says what the way through
Kafka costs the engine; a second pass pins nothing, which is what a user of two cores sees.
"""

import asyncio
import os
from collections.abc import Sequence

import psutil

from benchmarks.report import Goal, Interval, finish, interval
from benchmarks.rig import SMOLLM2, Arrival, PlainClient, ask_engine, bare_engine, prompt, running
from engine.thread import EngineThread

NUM_REQUESTS = 64
PROMPT_TOKENS, MAX_TOKENS = 32, 32
NUM_PAIRS = 10
SHARE_GOAL = 0.97

ENGINE_CORE, OTHER_CORE = 1, 0


async def measure() -> None:
    """Measure pinned and unpinned, and report."""
    pinned, deltas = await _shares(is_pinned=True)
    free, _ = await _shares(is_pinned=False)
    rows = [
        ["engine", "share of the bare engine", "tokens a delta"],
        ["pinned to one core", str(pinned), f"{deltas:.2f}"],
        ["nothing pinned", str(free), ""],
    ]
    figures: dict[str, object] = {"share_pinned": pinned, "share_unpinned": free, "tokens_a_delta": deltas}
    finish("pipeline_overhead", figures, [Goal("share, pinned", pinned, SHARE_GOAL, "higher")], rows)


async def _shares(*, is_pinned: bool) -> tuple[Interval, float]:
    flags = ["engine.num_threads=1"] if is_pinned else []
    async with running(SMOLLM2, *flags) as ensemble, PlainClient(ensemble.settings) as client:
        with bare_engine(ensemble.settings) as engine:
            await _pass(client, engine, 0)  # warms both up, and shows which threads compute
            if is_pinned:
                _pin()
            ratios, before = [], client.num_deltas
            for pair in range(1, NUM_PAIRS + 1):
                over_kafka, alone = await _pass(client, engine, pair)
                ratios.append(_rate(over_kafka) / _rate(alone))
                print(f"{'pinned' if is_pinned else 'free'} pair {pair} of {NUM_PAIRS}: {ratios[-1]:.3f}", flush=True)
            num_tokens = NUM_PAIRS * NUM_REQUESTS * MAX_TOKENS
            return interval(ratios), num_tokens / (client.num_deltas - before)


async def _pass(client: PlainClient, engine: EngineThread, number: int) -> tuple[list[Arrival], list[Arrival]]:
    prompts = [prompt(number * NUM_REQUESTS + place, PROMPT_TOKENS) for place in range(NUM_REQUESTS)]

    async def kafka() -> list[Arrival]:
        asked = (
            client.ask(f"k{number}-{place}", ids, max_tokens=MAX_TOKENS, lane="bulk")
            for place, ids in enumerate(prompts)
        )
        return list(await asyncio.gather(*asked))

    async def bare() -> list[Arrival]:
        asked = (
            ask_engine(engine, f"e{number}-{place}", ids, max_tokens=MAX_TOKENS) for place, ids in enumerate(prompts)
        )
        return list(await asyncio.gather(*asked))

    # In turns, so that whoever is first is not always the same.
    if number % 2:
        return await kafka(), await bare()
    alone = await bare()
    return await kafka(), alone


def _rate(arrivals: Sequence[Arrival]) -> float:
    """Tokens a second from the first request sent to the last token seen."""
    if any(arrival.num_tokens != MAX_TOKENS for arrival in arrivals):
        raise RuntimeError("the two did not make the same number of tokens")
    elapsed_s = max(arrival.last_s for arrival in arrivals) - min(arrival.sent_s for arrival in arrivals)
    return len(arrivals) * MAX_TOKENS / elapsed_s


def _pin() -> None:
    """The thread that computed most in each process with an engine goes to one core, all others to the other one."""
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        threads = {thread.id: thread.user_time for thread in process.threads()}
        has_engine = process.pid == os.getpid() or "worker" in process.cmdline()
        busiest = max(threads, key=lambda number: threads[number])
        for thread in threads:
            os.sched_setaffinity(thread, {ENGINE_CORE if has_engine and thread == busiest else OTHER_CORE})


if __name__ == "__main__":
    asyncio.run(measure())
