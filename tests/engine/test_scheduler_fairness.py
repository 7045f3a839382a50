"""Shares of the engine between classes, tenants and priorities, decided without a model."""

import pytest

from engine.queue import BULK_AGEING_S, INTERACTIVE_PER_BULK, PRIORITY_WORTH_S
from tests.engine.scheduler_bench import Bench


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
