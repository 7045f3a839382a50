"""Drafts: where they come from, which of their tokens count, and that nothing but time changes with them."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan import Sample, StepPlan
from engine.proposer import NgramIndex, NgramProposer, verified
from engine.types import GenerationRequest
from tests.engine.drafting import Oracle
from tests.engine.simulation import expected_tokens, simulated_engine
from tests.engine.tiny import EOS, Clock, check_blocks, last, run, tiny_request, tokens

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def continuation_by_scanning(text: list[int], shortest: int, longest: int, num_tokens: int) -> list[int]:
    """The same by looking everywhere, the latest place first."""
    for length in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if length <= len(text) and text[end - length : end] == text[len(text) - length :]:
                going_on = list(text)
                for _ in range(num_tokens):
                    going_on.append(going_on[len(going_on) - len(text) + end])
                return going_on[len(text) :]
    return []


@given(text=TEXTS, shortest=st.integers(1, 3), more=st.integers(0, 2), num_tokens=st.integers(1, 9), data=st.data())
def test_the_index_finds_what_scanning_the_text_finds(
    text: list[int], shortest: int, more: int, num_tokens: int, data: st.DataObject
) -> None:
    index, length = NgramIndex(shortest, shortest + more), 0
    while length < len(text):
        length += data.draw(st.integers(1, len(text) - length))
        expected = continuation_by_scanning(text[:length], shortest, shortest + more, num_tokens)
        assert index.continuation(text[:length], num_tokens) == expected


def test_the_longest_match_wins_and_among_equal_ones_the_latest() -> None:
    index = NgramIndex(2, 3)
    assert index.continuation([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2) == [9, 2]
    assert index.continuation([1, 2, 3, 9, 2, 3, 8, 1, 2, 3, 9, 7, 2, 3], 3) == [9, 7, 2]


def test_a_text_that_repeats_itself_to_its_end_is_continued_beyond_it() -> None:
    assert NgramIndex(1, 4).continuation([7, 5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]
    assert NgramIndex(1, 4).continuation([4, 4], 3) == [4, 4, 4]


def test_a_text_without_repetition_gives_no_draft() -> None:
    assert NgramIndex(1, 4).continuation([1, 2, 3, 4], 3) == []
    assert NgramIndex(1, 4).continuation([1], 3) == []


@given(draft=st.lists(st.integers(0, 2), max_size=5), data=st.data())
def test_a_draft_counts_up_to_its_first_wrong_token_and_the_drawn_one_replaces_that(
    draft: list[int], data: st.DataObject
) -> None:
    size = len(draft) + 1
    drawn = data.draw(st.lists(st.one_of(st.integers(0, 2), st.none()), min_size=size, max_size=size))
    counted = verified(draft, [Sample(5, token_id) for token_id in drawn])
    num_right = len(counted) - 1
    assert [sample.token_id for sample in counted] == drawn[: len(counted)]
    assert drawn[:num_right] == draft[:num_right]
    assert [sample.is_drafted for sample in counted] == [True] * num_right + [False]
    assert num_right == len(draft) or drawn[num_right] != draft[num_right]


def requests() -> list[GenerationRequest]:
    numbers = random.Random(4)
    return [
        tiny_request(
            f"r{i}", [numbers.randrange(4) for _ in range(1 + i * 5 % 60)], max_tokens=1 + i * 11 % 70,
            num_choices=1 + i % 3, seed=i, priority_class=("interactive", "bulk")[i % 2],
        )
        for i in range(24)
    ]  # fmt: skip


@pytest.mark.parametrize("share_right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("num_blocks", [16, 200])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_drafts_right_or_wrong_change_no_token(share_right: float, num_blocks: int, *, prefix_cache: bool) -> None:
    oracle = Oracle(share_right=share_right)
    engine, executor = simulated_engine(
        num_blocks, max_running=6, max_tokens_per_step=40, prefix_cache=prefix_cache, proposer=oracle
    )
    outputs = run(engine, requests())
    for request in requests():
        for choice in range(request.sampling.num_choices):
            assert tokens(outputs, request.request_id, choice) == expected_tokens(request, choice)
            assert last(outputs, request.request_id, choice).finish_reason in ("stop", "length")
    stats = engine.stats()
    assert stats.num_draft_tokens == sum(len(step.draft) for plan in executor.plans for step in plan.steps) > 0
    assert stats.num_accepted_tokens == stats.num_draft_tokens * share_right or 0 < share_right < 1
    assert max(plan.num_tokens for plan in executor.plans) <= 40
    assert (stats.num_preemptions > 0) == (num_blocks == 16)
    assert not oracle.known, "the proposer was not told of every end"


@pytest.mark.parametrize("share_right", [None, 1.0])
def test_right_drafts_save_steps_and_compute_no_token_twice(share_right: float | None) -> None:
    oracle = None if share_right is None else Oracle(share_right=share_right)
    engine, executor = simulated_engine(64, proposer=oracle)
    request = tiny_request("r", "abc", max_tokens=61, seed=2, ignore_eos=True)
    # `expected_tokens` ends with the first end token, so the oracle's knowledge does too.
    num_known = len(expected_tokens(request))
    assert num_known > 20
    run(engine, [request])
    assert sum(plan.num_tokens for plan in executor.plans) == 3 + 60
    assert engine.stats().num_steps == (61 if oracle is None else 61 - num_known + -(-num_known // 6))


def test_a_plan_with_drafts_survives_the_wire() -> None:
    engine, executor = simulated_engine(64, proposer=Oracle())
    run(engine, [tiny_request("r", "abc", max_tokens=30, ignore_eos=True)])
    assert any(step.draft for plan in executor.plans for step in plan.steps)
    for plan in executor.plans:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan) == plan


@pytest.mark.parametrize(("num_blocks", "prefix_cache"), [(12, False), (200, True)])
def test_drafts_take_only_rows_and_blocks_that_nobody_else_wants(num_blocks: int, *, prefix_cache: bool) -> None:
    """Wrong drafts change no step of anybody. (In a small pool they may change which old prefix is forgotten first.)"""
    steps = []
    for oracle in (None, Oracle(share_right=0.0)):
        engine, executor = simulated_engine(
            num_blocks, max_running=4, max_tokens_per_step=16, prefix_cache=prefix_cache, proposer=oracle
        )
        run(engine, requests())
        steps.append([[(s.sequence_id, s.start, s.token_ids) for s in plan.steps] for plan in executor.plans])
    assert steps[0] == steps[1]
    assert any(step.draft for plan in executor.plans for step in plan.steps)


def ending(**fields: object) -> GenerationRequest:
    """A request whose output ends by itself, in the middle of the oracle's drafts of five, which one draft adds."""
    requests = (tiny_request("r", "abc", max_tokens=90, seed=seed, **fields) for seed in itertools.count())
    return next(r for r in requests if 20 < len(expected_tokens(r)) < 90 and len(expected_tokens(r)) % 6 == 3)


@pytest.mark.parametrize("end", ["eos", "stop", "stop token", "length"])
def test_a_choice_that_ends_inside_a_draft_ends_there(end: str) -> None:
    expected = expected_tokens(ending())
    assert expected[-1] == EOS
    ascii_at = next(i for i, token_id in enumerate(expected) if 32 < token_id < 127 and i > 6 and i % 6 in (1, 2, 3))
    last_token = expected[-1] if end == "eos" else expected[ascii_at]
    fields: dict[str, dict[str, object]] = {
        "eos": {},
        "stop": {"stop": [chr(last_token)]},
        "stop token": {"stop_token_ids": [last_token]},
        "length": {"max_tokens": ascii_at + 1},
    }
    length = ascii_at + 1 if end == "length" else expected.index(last_token) + 1
    params = msgspec.structs.replace(ending().sampling, **fields[end])
    engine, _ = simulated_engine(16, proposer=Oracle(share_right=1.0))
    outputs = run(engine, [msgspec.structs.replace(ending(), sampling=params)])
    assert tokens(outputs, "r") == expected[:length]
    assert last(outputs, "r").finish_reason == ("length" if end == "length" else "stop")
    assert engine.stats().num_generated_tokens == length


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_choice_that_is_ended_between_drafts_has_given_what_it_would_have(end: str) -> None:
    clock = Clock()
    request = msgspec.structs.replace(ending(), deadline_s=9.0)
    engine, _ = simulated_engine(16, proposer=Oracle(share_right=1.0), clock=clock)
    engine.add(request)
    outputs = engine.step() + engine.step()
    assert len(outputs) == 12
    if end == "cancel":
        outputs += engine.cancel("r")
    clock.now_s = 9.0
    outputs += run(engine)
    assert tokens(outputs, "r") == expected_tokens(request)[:12]
    assert last(outputs, "r").finish_reason == "cancelled"
    check_blocks(engine)


def test_what_a_wrong_draft_computed_is_never_found_as_a_prefix() -> None:
    engine, executor = simulated_engine(64, proposer=Oracle(num_tokens=40, share_right=0.0))
    request = tiny_request("r", [1] * 30, max_tokens=20, seed=11, ignore_eos=True)
    outputs = run(engine, [request])
    drafted = next(step for plan in executor.plans for step in plan.steps if len(step.draft) > 16)
    wrong = [1] * 30 + tokens(outputs, "r")[: drafted.start + 1 - 30] + drafted.draft
    again = last(run(engine, [tiny_request("w", [*wrong, 0], max_tokens=1)]), "w")
    assert again.num_cached_tokens == (drafted.start + 1) // 16 * 16


def test_an_ngram_proposer_forgets_what_has_ended() -> None:
    proposer = NgramProposer(shortest=1, longest=3, num_tokens=4)
    engine, _ = simulated_engine(64, proposer=proposer)
    for i in range(30):
        run(engine, [tiny_request(f"r{i}", [1, 2] * 20, max_tokens=5, num_choices=2)])
    assert engine.stats().num_drafts > 0
    assert not proposer._indexes  # what it holds shows nowhere else
