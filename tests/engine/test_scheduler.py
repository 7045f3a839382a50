"""Who runs, who waits and who gives way, decided without a model."""

from collections.abc import Callable

import msgspec
import pytest

from engine.plan import StepPlan
from engine.sequence import Sequence, SequenceState
from tests.engine.scheduler_bench import Bench
from tests.engine.tiny import tiny_request


def test_decoding_sequences_get_their_row_beside_a_long_prompt() -> None:
    bench = Bench(max_tokens=10)
    for name in ("a", "b"):
        bench.add(name)
    bench.step()
    bench.add("long", num_prompt=50)
    rows = [bench.step() for _ in range(8)]
    assert all(step["a"] == step["b"] == 1 for step in rows)
    assert [step.get("long") for step in rows] == [8, 8, 8, 8, 8, 8, 2, 1]


def test_prompts_share_the_budget_oldest_first() -> None:
    bench = Bench(max_tokens=30)
    for name in ("a", "b", "c"):
        bench.add(name, num_prompt=20)
    assert bench.step() == {"a": 20, "b": 10}
    assert bench.step() == {"a": 1, "b": 10, "c": 19}
    assert bench.step() == {"a": 1, "b": 1, "c": 1}


def test_no_more_than_max_running_run() -> None:
    bench = Bench(max_running=2)
    for name in ("a", "b", "c"):
        bench.add(name)
    assert set(bench.step()) == {"a", "b"}
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 1)
    bench.finish("a")
    assert set(bench.step()) == {"b", "c"}


def test_the_youngest_is_preempted_and_bulk_work_before_it() -> None:
    bench = Bench(num_blocks=4, max_tokens=64)
    bench.add("bulk", num_prompt=15, priority_class="bulk")
    bench.step()
    for name in ("old", "young"):
        bench.add(name, num_prompt=14)
    bench.step()
    assert bench.running == {"bulk", "old", "young"}
    bench.step()  # each has 16 tokens now, in one block
    preempted = []
    for _ in range(40):
        before = bench.running
        bench.step()
        preempted += sorted(before - bench.running)
    assert preempted[:2] == ["bulk", "young"]
    assert "old" in bench.running


def test_a_preempted_sequence_comes_back_before_others_of_its_class() -> None:
    bench = Bench(num_blocks=4, max_running=2, max_tokens=64)
    bench.add("old", num_prompt=31)
    young = bench.add("young", num_prompt=31)
    while young.state is not SequenceState.WAITING or not young.num_preemptions:
        bench.step()
    bench.add("new", num_prompt=4, tenant="other")
    bench.finish("old")
    assert list(bench.step()) == ["young", "new"]
    assert young.num_output > 0


@pytest.mark.parametrize("limit", ["slots", "blocks"])
def test_interactive_work_displaces_the_latest_bulk_work(limit: str) -> None:
    bench = Bench(num_blocks=9 if limit == "blocks" else 100, max_running=3 if limit == "slots" else 9, max_tokens=200)
    for name in ("bulk1", "bulk2", "bulk3"):
        bench.add(name, num_prompt=40, priority_class="bulk")
    bench.step()
    assert bench.running == {"bulk1", "bulk2", "bulk3"}
    bench.add("now", num_prompt=40)
    assert bench.step().get("now") == 40
    assert bench.running == {"bulk1", "bulk2", "now"}
    bench.finish("now")
    bench.step()
    assert bench.running == {"bulk1", "bulk2", "bulk3"}


def test_bulk_work_displaces_nobody_and_interactive_work_no_interactive_work() -> None:
    bench = Bench(max_running=2)
    for name in ("bulk1", "bulk2"):
        bench.add(name, priority_class="bulk")
    bench.step()
    bench.add("bulk3", priority_class="bulk")
    bench.step()
    assert bench.running == {"bulk1", "bulk2"}
    for name in ("i1", "i2", "i3"):
        bench.add(name)
    bench.step()
    assert bench.running == {"i1", "i2"}


def test_bulk_work_is_not_preempted_for_what_would_not_fit_even_so() -> None:
    bench = Bench(num_blocks=8, max_tokens=200)
    bench.add("i1", num_prompt=60)
    bench.step()
    bench.add("bulk", num_prompt=20, priority_class="bulk")
    bench.step()
    bench.add("i2", num_prompt=100)
    bench.step()
    assert bench.running == {"i1", "bulk"}


def test_nobody_overtakes_the_one_who_waits_for_memory() -> None:
    bench = Bench(num_blocks=8, max_tokens=200)
    bench.add("a", num_prompt=60)
    bench.step()
    bench.add("large", num_prompt=100)
    bench.add("small", num_prompt=4)
    bench.step()
    assert bench.running == {"a"}
    bench.finish("a")
    bench.step()
    assert bench.running == {"large", "small"}


def test_choices_of_a_request_wait_for_the_first_one_even_without_a_prefix_cache() -> None:
    bench = Bench(max_running=4, max_tokens=16, caches=False)
    leader = bench.add("r", num_prompt=40)
    follower = Sequence(1, leader.request, 1, arrival_s=0.0, leader=leader)
    bench.sequences["r/1"] = follower
    bench.scheduler.add(follower)
    assert [bench.scheduler.num_running for _ in range(3) if bench.step()] == [1, 1, 1]
    bench.step()
    assert follower.num_computed == 40
    assert bench.pool.counts.used == 4
    assert follower.blocks[:2] == leader.blocks[:2]
    assert follower.blocks[2] != leader.blocks[2]


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    bench = Bench(max_tokens=64)
    for _ in range(2):
        sequence = Sequence(0, tiny_request("r", [3] * 48), 0, arrival_s=0.0)
        bench.sequences = {"r": sequence}
        bench.scheduler.add(sequence)
        rows = bench.step()
        bench.scheduler.finish(sequence)
    assert rows == {"r": 16}


def test_a_plan_survives_the_wire() -> None:
    bench = Bench()
    bench.add("a", num_prompt=20, logit_bias={3: 1.0}, top_logprobs=2)
    plan = bench.scheduler.schedule(0.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan) == plan


def test_the_same_history_gives_the_same_plans() -> None:
    plans: list[list[StepPlan]] = []
    for _ in range(2):
        bench = Bench(num_blocks=12)
        bench.scheduler.schedule, recorded = record(bench.scheduler.schedule)  # type: ignore[method-assign,assignment]  # a wrapper
        for i in range(9):
            bench.add(f"r{i}", num_prompt=10 + 7 * i, priority_class=("bulk", "interactive")[i % 2], tenant=f"t{i % 3}")
            bench.step()
            bench.step()
        plans.append(recorded)
    assert plans[0] == plans[1]


def record(schedule: Callable[[float], StepPlan]) -> tuple[Callable[[float], StepPlan], list[StepPlan]]:
    recorded: list[StepPlan] = []

    def wrapped(now_s: float) -> StepPlan:
        recorded.append(schedule(now_s))
        return recorded[-1]

    return wrapped, recorded
