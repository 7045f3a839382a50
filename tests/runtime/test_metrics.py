"""What the metrics endpoint says of numbers that others count."""

import msgspec
import pytest
from prometheus_client import REGISTRY, generate_latest

from consumers.worker.meter import watch_engine
from engine.types import EngineStats
from runtime.metrics import AskedCounter
from tests.engine.tiny import tiny_engine


def lines() -> dict[str, float]:
    samples = [line for line in generate_latest(REGISTRY).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in samples)}


def test_an_asked_counter_is_asked_each_time_and_stands_at_zero_before() -> None:
    counter = AskedCounter("headrace:test_asked", "A counter of this test")
    try:
        assert lines()["headrace:test_asked_total"] == 0
        counts = iter([3, 5])
        counter.set_function(lambda: next(counts))
        assert [lines()["headrace:test_asked_total"] for _ in range(2)] == [3, 5]
    finally:
        REGISTRY.unregister(counter)


@pytest.mark.parametrize("field", ["num_drafts", "num_draft_tokens", "num_accepted_tokens"])
def test_acceptance_of_drafts_has_the_names_that_vllm_gives_it(field: str) -> None:
    stats: EngineStats = msgspec.structs.replace(tiny_engine().stats(), **{field: 7})
    watch_engine(lambda: stats)
    found = {name for name, value in lines().items() if value == 7 and "spec_decode" in name}
    assert found == {f"headrace:spec_decode_{field}_total"}
