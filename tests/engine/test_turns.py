"""Bulk work beside people: it stands back while their prompts are computed, and is not forgotten."""

from engine.sequence import Sequence
from engine.turns import MAX_STEPS_BACK
from tests.engine.scheduler_bench import Bench
from tests.engine.tiny import tiny_request


def test_bulk_work_stands_back_while_the_prompt_of_a_person_is_computed() -> None:
    bench = Bench(max_tokens=20)
    bench.add("bulk", num_prompt=8, priority_class="bulk")
    bench.step()
    bench.add("behind", num_prompt=100, priority_class="bulk")
    assert bench.step() == {"bulk": 1, "behind": 19}
    bench.add("person", num_prompt=35)
    assert [bench.step() for _ in range(3)] == [{"person": 20}, {"person": 15}, {"person": 1, "bulk": 1, "behind": 9}]


def test_bulk_work_has_its_turn_however_long_people_s_prompts_are() -> None:
    bench = Bench(max_tokens=20)
    for name in ("bulk1", "bulk2"):
        bench.add(name, priority_class="bulk")
    bench.step()
    bench.add("person", num_prompt=400)
    steps = [bench.step() for _ in range(3 * (MAX_STEPS_BACK + 1))]
    alone, together = {"person": 20}, {"person": 18, "bulk1": 1, "bulk2": 1}
    assert steps == ([alone] * MAX_STEPS_BACK + [together]) * 3


def test_a_person_whose_prefix_bulk_work_is_computing_waits_for_it_and_not_for_ever() -> None:
    bench = Bench(max_tokens=20)
    bulk = bench.add("bulk", num_prompt=64, priority_class="bulk")
    bench.step()
    person = Sequence(99, tiny_request("person", bulk.token_ids[:64], max_tokens=5), 0, arrival_s=0.0)
    bench.sequences["person"] = person
    bench.scheduler.add(person)
    for _ in range(6):
        bench.step()
    assert person.num_output > 0
    assert person.num_cached_tokens == 48


def test_beside_people_bulk_prompts_take_half_of_what_is_left_and_alone_all() -> None:
    bench = Bench(max_tokens=21)
    bench.add("bulk", priority_class="bulk")
    bench.step()
    bench.add("long", num_prompt=200, priority_class="bulk")
    assert bench.step() == {"bulk": 1, "long": 20}
    bench.add("person", num_prompt=4)
    assert bench.step() == {"person": 4}
    assert bench.step() == {"person": 1, "bulk": 1, "long": 10}
    bench.finish("person")
    assert bench.step() == {"bulk": 1, "long": 20}


def test_bulk_work_that_decodes_has_its_row_beside_people_however_small_the_step() -> None:
    bench = Bench(max_running=4, max_tokens=4)
    for name in ("bulk1", "bulk2", "bulk3"):
        bench.add(name, num_prompt=1, priority_class="bulk")
    bench.step()
    bench.add("person", num_prompt=1)
    bench.step()
    assert bench.step() == {"person": 1, "bulk1": 1, "bulk2": 1, "bulk3": 1}
