"""A slice of the histories that `make prove-engine` goes through."""

from hypothesis import settings

from tests.engine.histories import EngineMachine
from tests.engine.simulation import expected_tokens, simulated_engine
from tests.engine.tiny import tiny_request, tokens

EngineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None, print_blob=True)
TestEngineHistories = EngineMachine.TestCase


def test_tokens_helper_counts_from_zero() -> None:
    """The histories check indexes themselves, because of what predecessors emitted."""
    request = tiny_request("r", "abc", max_tokens=3)
    engine, _ = simulated_engine(8)
    engine.add(request)
    outputs = [output for _ in range(6) if engine.has_work for output in engine.step()]
    assert tokens(outputs, "r") == expected_tokens(request)
