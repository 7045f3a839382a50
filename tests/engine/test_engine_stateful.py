"""Any history of requests, cancels, failures and time: nothing leaks, nothing starves, no wrong KV, no wrong token."""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.types import GenerationOutput, GenerationRequest
from tests.engine.simulation import expected_tokens, simulated_engine
from tests.engine.tiny import Clock, check_blocks, last, tiny_request, tokens

NUM_BLOCKS = 9
# Far above what any history here can need if each step moves someone forward.
MAX_STEPS = 20_000
# `make prove-engine` raises both; the defaults are a slice that fits the suite.
MAX_EXAMPLES = int(os.environ.get("PROVE_ENGINE_EXAMPLES", "80"))
STEPS_EACH = int(os.environ.get("PROVE_ENGINE_STEPS", "30"))

# Prompts that share beginnings of several lengths, so that prefixes are matched, awaited, forked and evicted.
PROMPTS = st.builds(
    lambda letter, shared, own, n: [letter] * shared + [own] * n,
    st.sampled_from([1, 2]),
    st.sampled_from([0, 15, 16, 17, 40, 64]),
    st.integers(3, 5),
    st.integers(1, 20),
)


class EngineMachine(RuleBasedStateMachine):
    """The engine over a simulated model, with a pool that is too small for what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.engine, self.executor = simulated_engine(
            NUM_BLOCKS, max_running=4, max_tokens_per_step=24, clock=self.clock
        )
        self.requests: dict[str, GenerationRequest] = {}
        self.outputs: list[GenerationOutput] = []
        self.interrupted: set[str] = set()

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 40),
        num_choices=st.sampled_from([1, 1, 2, 4]),
        seed=st.integers(0, 3),
        tenant=st.sampled_from(["a", "b"]),
        priority_class=st.sampled_from(["interactive", "bulk"]),
        priority=st.integers(-1, 1),
        ttl_s=st.sampled_from([None, None, 5.0]),
        num_emitted=st.sampled_from([0, 0, 3]),
    )
    def add(
        self, prompt: list[int], max_tokens: int, num_choices: int, seed: int, ttl_s: float | None, num_emitted: int,
        **fields: object,
    ) -> None:  # fmt: skip
        request_id = f"r{len(self.requests)}"
        request = tiny_request(
            request_id, prompt, max_tokens=max_tokens, num_choices=num_choices, seed=seed,
            deadline_s=None if ttl_s is None else self.clock.now_s + ttl_s, **fields,
        )  # fmt: skip
        emitted = {choice: expected_tokens(request, choice)[: num_emitted * choice] for choice in range(num_choices)}
        names = [name for name in request.__struct_fields__ if name != "emitted"]
        request = GenerationRequest(**{name: getattr(request, name) for name in names}, emitted=emitted)
        self.requests[request_id] = request
        if ttl_s is not None:
            self.interrupted.add(request_id)
        self.engine.add(request)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.engine.has_work:
                self.outputs += self.engine.step()
                self.clock.now_s += 0.1
                check_blocks(self.engine)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        if ended := self.engine.cancel(request_id):
            self.outputs += ended
            self.interrupted.add(request_id)

    @precondition(lambda self: self.engine.has_work)
    @rule(is_taint=st.booleans())
    def break_a_step(self, *, is_taint: bool) -> None:
        self.executor.fail_next, self.executor.taint_next = not is_taint, is_taint
        before = len(self.outputs)
        self.step(1)
        self.executor.fail_next = self.executor.taint_next = False
        broken = [output for output in self.outputs[before:] if output.finish_reason == "error"]
        self.interrupted |= {output.request_id for output in broken}

    @rule(seconds=st.sampled_from([1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @invariant()
    def running_sequences_and_blocks_stay_within_bounds(self) -> None:
        check_blocks(self.engine)
        assert self.engine.stats().num_running <= 4
        assert all(plan.num_tokens <= 24 for plan in self.executor.plans[-12:])

    def teardown(self) -> None:
        """Everything ends, and has given what it should have."""
        for _ in range(MAX_STEPS):
            if not self.engine.has_work:
                break
            self.outputs += self.engine.step()
        assert not self.engine.has_work, "somebody starves"
        check_blocks(self.engine)
        for request in self.requests.values():
            for choice in range(request.sampling.num_choices):
                self.check_choice(request, choice)

    def check_choice(self, request: GenerationRequest, choice: int) -> None:
        mine = [o for o in self.outputs if (o.request_id, o.choice) == (request.request_id, choice)]
        expected = expected_tokens(request, choice)
        num_emitted = len(request.emitted[choice])
        given = [token_id for output in mine for token_id in output.token_ids]
        assert [o.index for o in mine if o.token_ids] == list(range(num_emitted, num_emitted + len(given)))
        assert given == expected[num_emitted : num_emitted + len(given)]
        end = last(mine, request.request_id, choice)
        if request.request_id not in self.interrupted:
            assert end.finish_reason in ("stop", "length")
        if end.finish_reason in ("stop", "length"):
            assert num_emitted + len(given) == len(expected)


EngineMachine.TestCase.settings = settings(
    max_examples=MAX_EXAMPLES, stateful_step_count=STEPS_EACH, deadline=None, print_blob=True
)
TestEngineHistories = EngineMachine.TestCase


def test_tokens_helper_counts_from_zero() -> None:
    """The histories above check indexes themselves, because of what predecessors emitted."""
    request = tiny_request("r", "abc", max_tokens=3)
    engine, _ = simulated_engine(8)
    engine.add(request)
    outputs = [output for _ in range(6) if engine.has_work for output in engine.step()]
    assert tokens(outputs, "r") == expected_tokens(request)
