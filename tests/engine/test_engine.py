"""What the engine promises for each request, with scheduling real and the model simulated."""

import random

import pytest
import torch

from engine.executor import LocalExecutor
from engine.types import DEADLINE, GenerationOutput, GenerationRequest
from schemas.errors import ContextTooLong, InvalidValue
from tests.engine.drafting import Oracle
from tests.engine.simulation import expected_tokens, simulated_engine
from tests.engine.tiny import (
    CONTEXT_LENGTH,
    EOS,
    SPEC,
    Clock,
    check_blocks,
    last,
    run,
    text,
    tiny_engine,
    tiny_request,
    tokens,
)


@pytest.mark.parametrize("proposer", [None, Oracle()], ids=["plain", "drafting"])
def test_sixty_four_requests_in_a_pool_of_sixteen_blocks_all_finish(proposer: Oracle | None) -> None:
    engine, _ = simulated_engine(16, max_running=64, max_tokens_per_step=64, proposer=proposer)
    requests = [
        tiny_request(f"r{i}", [i % 7] * (1 + i % 150), max_tokens=1 + (i * 37) % 100, seed=i) for i in range(64)
    ]
    outputs = run(engine, requests)
    for request in requests:
        assert tokens(outputs, request.request_id) == expected_tokens(request)
    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("proposer", [None, Oracle()], ids=["plain", "drafting"])
def test_a_thousand_requests_cancelled_at_random_free_every_block(proposer: Oracle | None) -> None:
    numbers = random.Random(7)
    engine, _ = simulated_engine(60, max_running=16, proposer=proposer)
    requests = {
        f"r{i}": tiny_request(
            f"r{i}", [numbers.randrange(3)] * numbers.randrange(1, 90), max_tokens=60, num_choices=1 + i % 3, seed=i
        )
        for i in range(1000)
    }
    outputs: list[GenerationOutput] = []
    waiting = list(requests.values())
    while engine.has_work or waiting:
        for request in waiting[:5]:
            engine.add(request)
        del waiting[:5]
        for request_id in numbers.sample(sorted(requests), 30):
            outputs += engine.cancel(request_id)
        outputs += engine.step()
        check_blocks(engine)
    ended = [last(outputs, r.request_id, c) for r in requests.values() for c in range(r.sampling.num_choices)]
    reasons = {output.finish_reason for output in ended}
    assert reasons == {"cancelled", "stop", "length"}
    for output in ended:
        expected = expected_tokens(requests[output.request_id], output.choice)
        mine = tokens(outputs, output.request_id, output.choice)
        assert mine == expected[: len(mine)]
        assert output.finish_reason == "cancelled" or mine == expected
    stats = engine.stats()
    assert stats.kv_blocks_free + stats.kv_blocks_cached == stats.kv_blocks_total


def test_a_cancelled_request_ends_at_once_and_tells_how_much_it_used() -> None:
    engine, _ = simulated_engine(16)
    engine.add(tiny_request("r", "abc", max_tokens=50))
    outputs = [output for _ in range(3) for output in engine.step()]
    outputs += engine.cancel("r")
    assert not engine.has_work
    end = last(outputs, "r")
    assert (end.finish_reason, end.token_ids, end.index) == ("cancelled", [], 3)
    assert (end.num_prompt_tokens, len(tokens(outputs, "r"))) == (3, 3)
    assert engine.cancel("r") == []
    check_blocks(engine)


def test_a_request_may_come_again_right_after_its_cancel() -> None:
    engine, _ = simulated_engine(16)
    request = tiny_request("r", "abc", max_tokens=9)
    engine.add(request)
    engine.step()
    assert last(engine.cancel("r"), "r").finish_reason == "cancelled"
    assert tokens(run(engine, [request]), "r") == expected_tokens(request)


def test_a_deadline_ends_waiting_and_running_requests() -> None:
    clock = Clock()
    engine, _ = simulated_engine(16, max_running=1, clock=clock)
    for name in ("running", "waiting"):
        engine.add(tiny_request(name, "abc", max_tokens=50, deadline_s=10.0))
    outputs = engine.step() + engine.step()
    assert {output.request_id for output in outputs} == {"running"}
    clock.now_s = 10.0
    outputs += engine.step()
    for name in ("running", "waiting"):
        end = last(outputs, name)
        assert (end.finish_reason, end.stop_reason) == ("cancelled", DEADLINE)
    assert not engine.has_work


def test_a_deadline_of_an_ended_request_does_not_touch_a_new_one_of_the_same_id() -> None:
    clock = Clock()
    engine, _ = simulated_engine(16, clock=clock)
    run(engine, [tiny_request("r", "abc", max_tokens=2, deadline_s=10.0)])
    clock.now_s = 10.0
    assert last(run(engine, [tiny_request("r", "abc", max_tokens=2)]), "r").finish_reason != "cancelled"


def test_requests_that_end_in_time_are_not_kept_until_their_deadline() -> None:
    engine, _ = simulated_engine(64)
    watched = engine._deadlines  # what it holds shows nowhere else
    for i in range(2000):
        run(engine, [tiny_request(f"r{i}", "abc", max_tokens=1, deadline_s=1e9 - i)])
        assert len(watched) <= 300
    engine.add(tiny_request("late", "abc", max_tokens=9, deadline_s=-1.0))
    assert last(run(engine), "late").stop_reason == DEADLINE


def test_numbers_that_are_not_finite_end_their_sequence_and_their_blocks_are_not_reused_as_they_are() -> None:
    engine, executor = simulated_engine(16)
    engine.add(tiny_request("r", "x" * 40, max_tokens=9))
    executor.taint_next = True
    outputs: list[GenerationOutput] = []
    while not outputs:
        outputs = engine.step()
        executor.taint_next = True
    assert last(outputs, "r").error is not None
    assert engine.stats().kv_blocks_free == 16
    executor.taint_next = False
    again = tiny_request("again", "x" * 40, max_tokens=9)
    outputs = run(engine, [again])
    assert len(executor.plans[-1].cleared) == 0
    assert any(len(plan.cleared) == 3 for plan in executor.plans)
    assert last(outputs, "again").num_cached_tokens == 0
    assert tokens(outputs, "again") == expected_tokens(again)


def test_blocks_are_cleared_even_if_no_step_follows_at_once() -> None:
    engine, executor = simulated_engine(4)
    executor.taint_next = True
    run(engine, [tiny_request("bad", "x" * 12)])
    run(engine, [tiny_request("over", "abc", max_tokens=1, emitted={0: [5]})])
    assert len(executor.plans) == 1
    run(engine, [tiny_request("good", "abc", max_tokens=1)])
    assert [len(plan.cleared) for plan in executor.plans] == [0, 1]
    assert executor.plans[1].ended


def test_a_damaged_model_gives_an_error_and_not_a_token() -> None:
    engine = tiny_engine()
    assert isinstance(engine.executor, LocalExecutor)
    model = engine.executor._model  # the fault is planted where no interface leads
    model._weights.layers[1].mlp_norm[3] = torch.nan
    end = last(run(engine, [tiny_request("r", "abc")]), "r")
    assert (end.finish_reason, end.token_ids) == ("error", [])
    assert end.error is not None
    assert "not finite" in end.error.message


def test_choices_share_their_prompt_and_copy_only_the_block_that_they_write() -> None:
    engine, executor = simulated_engine(32, max_running=8, max_tokens_per_step=64)
    request = tiny_request("r", "p" * 40, max_tokens=5, num_choices=4)
    outputs = run(engine, [request])
    for choice in range(4):
        assert tokens(outputs, "r", choice) == expected_tokens(request, choice)
    computed = sum(plan.num_tokens for plan in executor.plans)
    outputs_computed = sum(len(expected_tokens(request, c)) - 1 for c in range(4))
    assert computed == 40 + 3 + outputs_computed
    assert sum(len(plan.copies) for plan in executor.plans) == 4 - 1
    assert [last(outputs, "r", choice).num_cached_tokens for choice in range(4)] == [0, 39, 39, 39]


def test_sequences_that_arrive_together_compute_a_shared_prefix_once() -> None:
    engine, executor = simulated_engine(64, max_running=8, max_tokens_per_step=48)
    prefix = [5] * 160
    requests = [tiny_request(f"r{i}", [*prefix, i, i], max_tokens=3, seed=i) for i in range(6)]
    outputs = run(engine, requests)
    for request in requests:
        assert tokens(outputs, request.request_id) == expected_tokens(request)
    assert engine.stats().num_prompt_tokens == 160 + 6 * 2
    assert engine.stats().num_cached_tokens == 5 * 160
    assert executor.plans[0].num_tokens == 48


def test_those_who_wait_for_a_prefix_go_on_when_its_owner_ends() -> None:
    engine, _ = simulated_engine(64, max_tokens_per_step=16)
    first, second = (tiny_request(name, [5] * 100, max_tokens=3) for name in ("first", "second"))
    engine.add(first)
    engine.add(second)
    outputs = engine.step() + engine.cancel("first") + run(engine)
    assert tokens(outputs, "second") == expected_tokens(second)


def test_a_tenants_cached_prompt_is_not_another_tenants() -> None:
    engine, _ = simulated_engine(64)
    prompt = [9] * 100
    for tenant, num_cached in (("a", 0), ("b", 0), ("a", 96)):
        outputs = run(engine, [tiny_request("r", prompt, max_tokens=1, tenant=tenant)])
        assert last(outputs, "r").num_cached_tokens == num_cached


def test_without_the_prefix_cache_nothing_is_found_and_nothing_stays() -> None:
    engine, _ = simulated_engine(64, prefix_cache=False)
    for _ in range(2):
        outputs = run(engine, [tiny_request("r", [9] * 100, max_tokens=1)])
        assert last(outputs, "r").num_cached_tokens == 0
    assert engine.stats().kv_blocks_free == 64


def test_the_last_output_tells_why_and_how_much() -> None:
    engine, _ = simulated_engine(64)
    request = tiny_request("r", "hello", max_tokens=200, seed=3)
    outputs = run(engine, [request])
    end = last(outputs, "r")
    assert end.token_ids == [EOS]
    assert (end.finish_reason, end.stop_reason, end.num_prompt_tokens) == ("stop", None, 5)
    assert sum(o.num_prompt_tokens for o in outputs) == 5 * len(outputs)
    expected = bytes(i for i in expected_tokens(request) if i != EOS).decode(errors="replace")
    assert text(outputs, "r") == expected


@pytest.mark.parametrize("num_emitted", [0, 1, 5])
def test_a_successor_resumes_each_choice_where_it_was(num_emitted: int) -> None:
    whole = tiny_request("r", "abc" * 9, max_tokens=12, num_choices=3, ignore_eos=True)
    fields = {name: getattr(whole, name) for name in ("request_id", "prompt_token_ids", "sampling")}
    full_outputs = run(simulated_engine(32)[0], [whole])
    emitted = {c: tokens(full_outputs, "r", c)[: num_emitted * c] for c in range(3)}
    outputs = run(simulated_engine(32)[0], [GenerationRequest(**fields, emitted=emitted)])
    for choice in range(3):
        mine = [o for o in outputs if o.choice == choice]
        assert mine[0].index == len(emitted[choice])
        assert emitted[choice] + [i for o in mine for i in o.token_ids] == tokens(full_outputs, "r", choice)
        before = "".join(o.text for o in full_outputs if o.choice == choice and o.index < len(emitted[choice]))
        assert before + text(outputs, "r", choice) == text(full_outputs, "r", choice)


def test_a_predecessor_that_had_given_everything_out_leaves_only_the_end() -> None:
    for emitted, reason in (([1, 2, 3], "length"), ([1, EOS], "stop")):
        engine, executor = simulated_engine(8)
        outputs = run(engine, [tiny_request("r", "abc", max_tokens=3, emitted={0: emitted})])
        assert [(o.index, o.token_ids, o.finish_reason) for o in outputs] == [(len(emitted), [], reason)]
        assert not executor.plans


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        (tiny_request("r", []), InvalidValue, "prompt"),
        (tiny_request("r", [SPEC.vocab_size]), InvalidValue, "prompt"),
        (tiny_request("r", [-1]), InvalidValue, "prompt"),
        (tiny_request("r", "a", logit_bias={999: 1.0}), InvalidValue, "logit_bias"),
        (tiny_request("r", "a", stop_token_ids=[999]), InvalidValue, "stop_token_ids"),
        (tiny_request("r", "a", emitted={0: [999]}), InvalidValue, "emitted"),
        (tiny_request("r", "a", emitted={1: [9]}), InvalidValue, None),
        (tiny_request("r", "a", max_tokens=2, emitted={0: [9, 9, 9]}), InvalidValue, None),
        (tiny_request("r", [1] * CONTEXT_LENGTH, max_tokens=1), ContextTooLong, "max_tokens"),
        (tiny_request("r", "a", max_tokens=16 * 16), ContextTooLong, "max_tokens"),
    ],
)
def test_what_can_never_run_is_refused(request_: GenerationRequest, error: type[Exception], param: str | None) -> None:
    engine, _ = simulated_engine(16)
    with pytest.raises(error) as raised:
        engine.add(request_)
    assert raised.value.param == param  # type: ignore[attr-defined]  # both errors are ours and have it
    assert not engine.has_work


def test_an_id_that_is_running_is_refused_and_may_come_again_after_its_end() -> None:
    engine, _ = simulated_engine(16)
    engine.add(tiny_request("r", "a"))
    with pytest.raises(InvalidValue, match="is running"):
        engine.add(tiny_request("r", "a"))
    run(engine)
    run(engine, [tiny_request("r", "a")])


def test_a_request_that_fills_the_pool_exactly_runs() -> None:
    engine, _ = simulated_engine(4)
    for choices in (1, 3):
        request = tiny_request("r", [1] * 48, max_tokens=16, num_choices=choices, ignore_eos=True)
        outputs = run(engine, [request])
        assert all(len(tokens(outputs, "r", choice)) == 16 for choice in range(choices))
