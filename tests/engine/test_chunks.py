"""No step takes much longer than another, however deep in a context its rows are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chunks import POSITIONS_WORTH_A_ROW, chunk, row_weight
from tests.engine.scheduler_bench import Bench

BUDGET = 64


@given(st.integers(0, 100_000), st.integers(1, 10_000), st.integers(-5, 1_000))
def test_a_chunk_fits_its_budget_and_moves_on_whenever_there_is_any(
    position: int, num_pending: int, budget: int
) -> None:
    num_rows = chunk(position, num_pending, budget)
    assert 0 <= num_rows <= num_pending
    assert num_rows <= 1 or num_rows * row_weight(position) <= budget
    assert (num_rows > 0) == (budget > 0)
    assert num_rows == num_pending or budget < 1 or (num_rows + 1) * row_weight(position) > budget


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_prompt_takes_shorter_chunks_deep_in_its_context(depth: int) -> None:
    bench = Bench(num_blocks=400, max_tokens=BUDGET)
    bench.add("long", num_prompt=POSITIONS_WORTH_A_ROW * depth + 3 * BUDGET)
    rows = [bench.step()["long"] for _ in range(sum(range(1, depth + 1)) * POSITIONS_WORTH_A_ROW // BUDGET + 2)]
    assert rows[0] == BUDGET
    assert rows[-1] == BUDGET // (depth + 1)


def test_several_prompts_deep_in_their_contexts_share_one_step() -> None:
    bench = Bench(num_blocks=2_000, max_tokens=BUDGET)
    names = ("a", "b", "c")
    for name in names:
        bench.add(name, num_prompt=4 * POSITIONS_WORTH_A_ROW)
    positions = dict.fromkeys(names, 0)
    while len(done := [name for name, position in positions.items() if position > 4_000]) < len(names):
        rows = {name: n for name, n in bench.step().items() if name not in done}
        prompts = {name: num_rows for name, num_rows in rows.items() if num_rows > 1}
        assert sum(num_rows * row_weight(positions[name]) for name, num_rows in prompts.items()) <= BUDGET
        for name, num_rows in rows.items():
            positions[name] += num_rows
