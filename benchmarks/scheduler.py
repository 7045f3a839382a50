"""What the scheduler makes of an engine: latency and throughput under mixed load, shared prefixes, bulk beside people.

All on the bare engine with SmolLM2, no Kafka. Requests that are compared run in turns in one process, since the machine
drifts; a request's time counts from when it was due. What verified mode costs is in `verified_cost`.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.load import Due, Load, Timeline, completion, p50, p99, text_of
from benchmarks.report import Goal, Interval, finish, interval
from benchmarks.rig import SMOLLM2, bare_engine
from benchmarks.scheduler_cost import NUM_RUNNING, NUM_WAITING, step_costs_ms
from engine.thread import EngineThread
from headrace.settings import resolve_settings

# The mixed load: what users send, at a share of what the engine can do.
PROMPT_TOKENS, OUTPUT_TOKENS = (64, 1024), (16, 256)
BURST, LOAD_SHARE, MIXED_S = 24, 0.6, 50.0
STEP_SIZES = (512, 256)

# Shared prefixes: several system prompts, all requests at once.
NUM_GROUPS, GROUP_SIZE, PREFIX_TOKENS, TAIL_TOKENS = 4, 16, 384, (16, 48)
HIT_GOAL = 0.95

# Bulk beside people: a backlog, and one person a second.
NUM_BULK, BULK_PROMPT, BULK_OUTPUT = 500, (64, 256), (32, 64)
PERSON_PROMPT, PERSON_OUTPUT, PERSONS_A_BLOCK, NUM_PAIRS = (64, 512), 32, 18, 2
RATIO_GOAL = 2.0

STEP_COST_GOAL_MS = 1.0
_NUM_RESAMPLES = 2_000


class Burst(NamedTuple):
    """What the engine bears."""

    requests_per_s: float
    tokens_per_s: float


class Mixed(NamedTuple):
    """One run of the mixed load, and the tokens a second, prompts and outputs, of a burst of it before."""

    ttft: list[float]
    tpot: list[float]
    burst_tokens_per_s: float

    @property
    def figures(self) -> dict[str, object]:
        """As they are recorded."""
        return {
            "ttft_ms": {"p50": interval(self.ttft, p50), "p99": interval(self.ttft, p99)},
            "tpot_ms": {"p50": interval(self.tpot, p50), "p99": interval(self.tpot, p99)},
            "burst_tokens_per_s": self.burst_tokens_per_s,
        }


def main() -> None:
    """Measure and report."""
    figures: dict[str, object] = {}
    costs = step_costs_ms()
    cost = interval(costs)
    rows = [["what", "value"], [f"scheduling a step, {NUM_RUNNING} running, {NUM_WAITING:,} waiting, ms", str(cost)]]
    figures["step_cost_ms"] = {"p50": cost, "p99": interval(costs, p99)}
    print(f"scheduling a step: {cost} ms", flush=True)

    mixed = _mixed_at_each_step_size()
    for step_size, one in mixed.items():
        figures[f"mixed, {step_size} tokens a step"] = one.figures
        rows += _rows(f"mixed, {step_size} tokens a step", one)

    with _engine() as engine:
        hit_share = _shared_prefix(Load(engine))
        alone, beside, bulk_per_s = _people_beside_bulk(Load(engine))
    ratio = _ratio(beside, alone, p99)
    figures["prefix_hits_of_optimum"] = hit_share
    figures["people"] = {
        "alone_ttft_ms": {"p50": interval(alone, p50), "p99": interval(alone, p99)},
        "beside_bulk_ttft_ms": {"p50": interval(beside, p50), "p99": interval(beside, p99)},
        "ratio_p99": ratio,
        "bulk_tokens_per_s": bulk_per_s,
    }
    rows += [
        ["prefix hits, share of the optimum", f"{hit_share:.3f}"],
        ["a person alone, TTFT p50 / p99, ms", f"{interval(alone, p50)} / {interval(alone, p99)}"],
        [f"beside {NUM_BULK} bulk, TTFT p50 / p99, ms", f"{interval(beside, p50)} / {interval(beside, p99)}"],
        ["beside / alone, p99", str(ratio)],
        ["bulk meanwhile, tokens/s", f"{bulk_per_s:.0f}"],
    ]
    goals = [
        Goal("scheduling a step, ms", cost, STEP_COST_GOAL_MS, "lower"),
        Goal("prefix hits, share of the optimum", hit_share, HIT_GOAL, "higher"),
        Goal("TTFT p99 beside bulk / alone", ratio, RATIO_GOAL, "lower"),
    ]
    finish("scheduler", figures, goals, rows)


@contextmanager
def _engine(*overrides: str) -> Iterator[EngineThread]:
    flags = [f"worker.model={SMOLLM2}", "logging.level=warning", *overrides]
    with bare_engine(resolve_settings(env={}, overrides=flags).settings) as engine:
        # Warm: the first forward pass of each shape sets memory and threads up.
        Load(engine).drive([Due(0.0, completion("warm", text_of(random.Random(1), 600), max_tokens=8))])
        yield engine


def _mixed_at_each_step_size() -> dict[int, Mixed]:
    """The same arrivals for each: a rate that the first one can bear."""
    rate = 0.0
    found = {}
    for step_size in STEP_SIZES:
        with _engine(f"engine.max_tokens_per_step={step_size}") as engine:
            load = Load(engine)
            burst = _burst(load)
            rate = rate or LOAD_SHARE * burst.requests_per_s
            found[step_size] = _mixed(load, rate, burst)
        one = found[step_size]
        print(f"mixed, {step_size} tokens a step: TTFT p99 {p99(one.ttft):.0f} ms at {rate:.2f}/s", flush=True)
    return found


def _burst(load: Load) -> Burst:
    """Requests at once, which keep the engine full for most of their time."""
    dues = _mixed_dues(random.Random(2), "burst", [0.0] * BURST)
    timelines = load.drive(dues).values()
    elapsed_s = max(one.times_s[-1] for one in timelines) - min(one.due_s for one in timelines)
    num_prompt = sum(len(due.request.prompt_token_ids) for due in dues)
    return Burst(BURST / elapsed_s, (num_prompt + sum(len(one.times_s) for one in timelines)) / elapsed_s)


def _mixed(load: Load, rate: float, burst: Burst) -> Mixed:
    """Poisson arrivals."""
    rng = random.Random(3)
    times: list[float] = []
    while (at_s := (times[-1] if times else 0.0) + rng.expovariate(rate)) < MIXED_S:
        times.append(at_s)
    timelines = load.drive(_mixed_dues(rng, "mixed", times)).values()
    return Mixed([one.ttft_ms for one in timelines], [one.tpot_ms for one in timelines], burst.tokens_per_s)


def _mixed_dues(rng: random.Random, name: str, times_s: Sequence[float]) -> list[Due]:
    """Prompts log-uniform: short ones are more frequent."""
    low, high = PROMPT_TOKENS
    dues = []
    for number, at_s in enumerate(times_s):
        prompt = text_of(rng, round(low * (high / low) ** rng.random()))
        dues.append(Due(at_s, completion(f"{name}{number}", prompt, max_tokens=rng.randint(*OUTPUT_TOKENS))))
    return dues


def _shared_prefix(load: Load) -> float:
    """Cached prompt tokens as a share of what the best order would find: each prefix is computed once."""
    rng = random.Random(4)
    prefixes = [text_of(rng, PREFIX_TOKENS) for _ in range(NUM_GROUPS)]
    prompts = [[*prefix, *text_of(rng, rng.randint(*TAIL_TOKENS))] for prefix in prefixes for _ in range(GROUP_SIZE)]
    rng.shuffle(prompts)
    dues = [Due(0.0, completion(f"shared{i}", prompt, max_tokens=16)) for i, prompt in enumerate(prompts)]
    num_cached = sum(one.num_cached_tokens for one in load.drive(dues).values())
    return num_cached / (NUM_GROUPS * (GROUP_SIZE - 1) * PREFIX_TOKENS)


def _people_beside_bulk(load: Load) -> tuple[list[float], list[float], float]:
    """Times to the first token of people alone and beside a backlog, and the backlog's tokens a second meanwhile."""
    alone: list[float] = []
    beside: list[float] = []
    bulk_rates = []
    for pair in range(NUM_PAIRS):
        # The same people in both, so that the ratio is of the company and not of the prompts.
        alone += _ttfts(load.drive(_people(f"alone{pair}", pair)))
        bulk = _send_bulk(load, pair)
        people = load.drive(_people(f"beside{pair}", pair))
        beside += _ttfts(people)
        load.cancel_all()
        begin_s, end_s = min(one.due_s for one in people.values()), max(one.times_s[-1] for one in people.values())
        times = [time for name in bulk for time in load.timelines[name].times_s]
        bulk_rates.append(sum(begin_s <= time <= end_s for time in times) / (end_s - begin_s))
        print(f"pair {pair + 1} of {NUM_PAIRS}: p99 {p99(alone):.0f} alone, {p99(beside):.0f} beside bulk", flush=True)
    return alone, beside, statistics.mean(bulk_rates)


def _people(name: str, seed: int) -> list[Due]:
    rng = random.Random(100 + seed)
    lengths = [rng.randint(*PERSON_PROMPT) for _ in range(PERSONS_A_BLOCK)]
    own = random.Random(name)  # prompts of their own: nothing comes from the prefix cache
    return [
        Due(second + rng.random(), completion(f"{name}-{second}", text_of(own, length), max_tokens=PERSON_OUTPUT))
        for second, length in enumerate(lengths)
    ]


def _send_bulk(load: Load, pair: int) -> list[str]:
    """A backlog; returns when it keeps the engine busy."""
    rng = random.Random(200 + pair)
    names = []
    for number in range(NUM_BULK):
        names.append(f"bulk{pair}-{number}")
        prompt, num_output = text_of(rng, rng.randint(*BULK_PROMPT)), rng.randint(*BULK_OUTPUT)
        load.send(completion(names[-1], prompt, max_tokens=num_output, priority_class="bulk"))
    load.wait(names[:1])
    return names


def _ttfts(timelines: dict[str, Timeline]) -> list[float]:
    return [one.ttft_ms for one in timelines.values()]


def _ratio(above: Sequence[float], below: Sequence[float], of: Callable[[Sequence[float]], float]) -> Interval:
    """A ratio of two statistics with its 95 % bootstrap interval; the two are resampled apart."""
    rng = random.Random(0)

    def drawn(samples: Sequence[float]) -> float:
        return of(rng.choices(samples, k=len(samples)))

    ratios = sorted(drawn(above) / drawn(below) for _ in range(_NUM_RESAMPLES))
    low, high = ratios[int(0.025 * _NUM_RESAMPLES)], ratios[int(0.975 * _NUM_RESAMPLES)]
    return Interval(of(above) / of(below), low, high)


def _rows(name: str, mixed: Mixed) -> list[list[str]]:
    return [
        [f"{name}: TTFT p50 / p99, ms", f"{interval(mixed.ttft, p50)} / {interval(mixed.ttft, p99)}"],
        [f"{name}: TPOT p50 / p99, ms", f"{interval(mixed.tpot, p50)} / {interval(mixed.tpot, p99)}"],
        [f"{name}: tokens/s of a burst", f"{mixed.burst_tokens_per_s:.0f}"],
    ]


if __name__ == "__main__":
    main()
