"""Who runs, who waits and who gives way, decided without a model."""

import msgspec
import pytest

from engine.kv.manager import KVManager
from engine.kv.pool import BlockPool
from engine.plan import StepPlan
from engine.queue import BULK_AGEING_S, INTERACTIVE_PER_BULK, PRIORITY_WORTH_S
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceState
from tests.engine.tiny import tiny_chain, tiny_request


class Bench:
    """A scheduler whose steps always succeed; each sampled token is a 7."""

    def __init__(
        self, *, num_blocks: int = 100, max_running: int = 4, max_tokens: int = 32, caches: bool = True
    ) -> None:
        self.pool = BlockPool(num_blocks)
        kv = KVManager(self.pool, tiny_chain if caches else None)
        self.scheduler = Scheduler(kv, max_running=max_running, max_tokens_per_step=max_tokens)
        self.sequences: dict[str, Sequence] = {}
        self.now_s = 0.0

    def add(self, name: str, num_prompt: int = 4, **fields: object) -> Sequence:
        """A prompt that nobody else has."""
        prompt = [len(self.sequences) % 250] * num_prompt
        request = tiny_request(name, prompt, max_tokens=500, **fields)
        sequence = Sequence(len(self.sequences), request, 0, arrival_s=self.now_s)
        self.sequences[name] = sequence
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Names and rows of one step."""
        plan = self.scheduler.schedule(self.now_s)
        by_id = {sequence.sequence_id: sequence for sequence in self.sequences.values()}
        rows = {}
        for step in plan.steps:
            sequence = by_id[step.sequence_id]
            rows[sequence.request.request_id] = len(step.token_ids)
            self.scheduler.commit(sequence, len(step.token_ids))
            if step.is_sampled:
                self.scheduler.append(sequence, 7)
        return rows

    def finish(self, name: str) -> None:
        self.scheduler.finish(self.sequences[name])

    @property
    def running(self) -> set[str]:
        return {name for name, s in self.sequences.items() if s.state is SequenceState.RUNNING}


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
    for name in ("old", "young"):
        bench.add(name, num_prompt=15)
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


def test_old_bulk_work_gets_a_share_of_admissions_and_no_more() -> None:
    bench = Bench(max_running=1)
    for i in range(10):
        bench.add(f"bulk{i}", priority_class="bulk")
    bench.now_s = BULK_AGEING_S
    for i in range(40):
        bench.add(f"i{i}")
    order = []
    for _ in range(30):
        (name,) = bench.step()
        order.append(name[0])
        bench.finish(next(iter(bench.running)))
    assert order == (["i"] * INTERACTIVE_PER_BULK + ["b"]) * (30 // (INTERACTIVE_PER_BULK + 1))


def test_young_bulk_work_waits_while_interactive_work_does() -> None:
    bench = Bench(max_running=1)
    bench.add("bulk", priority_class="bulk")
    for i in range(20):
        bench.add(f"i{i}")
    for _ in range(20):
        (name,) = bench.step()
        assert name != "bulk"
        bench.finish(name)
    assert list(bench.step()) == ["bulk"]


def test_bulk_work_that_came_in_by_its_age_is_not_displaced_at_once() -> None:
    bench = Bench(max_running=1)
    bench.add("bulk", priority_class="bulk")
    bench.now_s = BULK_AGEING_S
    for i in range(9):
        bench.add(f"i{i}")
    while bench.running != {"bulk"}:
        bench.step()
        for name in bench.running - {"bulk"}:
            bench.finish(name)
    bench.step()
    bench.step()
    assert bench.running == {"bulk"}


def test_tenants_get_equal_tokens_however_many_requests_they_send() -> None:
    bench = Bench(max_running=1, max_tokens=64)
    for i in range(60):
        bench.add(f"many{i}", num_prompt=30, tenant="many")
    for i in range(20):
        bench.add(f"few{i}", num_prompt=30, tenant="few")
    served = {"many": 0, "few": 0}
    for _ in range(40):
        (name,) = bench.step()
        served[name.rstrip("0123456789")] += 1
        bench.finish(name)
    assert served == {"many": 20, "few": 20}


def test_a_tenant_that_sends_long_prompts_is_served_less_often() -> None:
    bench = Bench(max_running=1, max_tokens=256)
    for i in range(30):
        bench.add(f"long{i}", num_prompt=90, tenant="long")
        bench.add(f"short{i}", num_prompt=30, tenant="short")
    served = {"long": 0, "short": 0}
    for _ in range(24):
        (name,) = bench.step()
        served[name.rstrip("0123456789")] += 1
        bench.finish(name)
    assert served["short"] == pytest.approx(3 * served["long"], abs=3)


def test_generated_tokens_count_for_a_tenants_share_like_prompts() -> None:
    """Prompts are alike; one tenant's outputs are 60 tokens long, the other's 2."""
    bench = Bench(max_running=1, max_tokens=64)
    for i in range(30):
        bench.add(f"long{i}", num_prompt=4, tenant="long")
        bench.add(f"short{i}", num_prompt=4, tenant="short")
    served = {"long": 0, "short": 0}
    for _ in range(22):
        (name,) = bench.step()
        kind = name.rstrip("0123456789")
        served[kind] += 1
        for _ in range(59 if kind == "long" else 1):
            bench.step()
        bench.finish(name)
    assert served["short"] >= 6 * served["long"]


def test_a_tenant_that_was_idle_does_not_bring_back_what_it_did_not_use() -> None:
    bench = Bench(max_running=1, max_tokens=64)
    for i in range(40):
        bench.add(f"busy{i}", num_prompt=30, tenant="busy")
    for _ in range(20):
        bench.finish(next(iter(bench.step())))
    for i in range(20):
        bench.add(f"back{i}", num_prompt=30, tenant="back")
    order = []
    for _ in range(10):
        (name,) = bench.step()
        order.append(name[:4])
        bench.finish(name)
    assert order.count("back") in (5, 6)


def test_priority_orders_a_tenants_work_and_waiting_outweighs_it() -> None:
    bench = Bench(max_running=1)
    bench.add("low", priority=-1)
    bench.add("plain")
    bench.add("high", priority=1)
    bench.now_s = 3 * PRIORITY_WORTH_S
    bench.add("late", priority=2)
    order = []
    for _ in range(4):
        (name,) = bench.step()
        order.append(name)
        bench.finish(name)
    assert order == ["high", "plain", "low", "late"]


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
        bench.scheduler.schedule, recorded = record(bench.scheduler.schedule)  # type: ignore[method-assign]
        for i in range(9):
            bench.add(f"r{i}", num_prompt=10 + 7 * i, priority_class=("bulk", "interactive")[i % 2], tenant=f"t{i % 3}")
            bench.step()
            bench.step()
        plans.append(recorded)
    assert plans[0] == plans[1]


def record(schedule):  # type: ignore[no-untyped-def]  # a test's wrapper
    recorded: list[StepPlan] = []

    def wrapped(now_s: float) -> StepPlan:
        recorded.append(schedule(now_s))
        return recorded[-1]

    return wrapped, recorded
