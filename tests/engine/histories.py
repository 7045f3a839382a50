"""Any history of requests, cancels, drafts, failures, imports and time, over a simulated model and a pool that is too
small for what is asked: nothing leaks, nothing starves, no wrong KV, no wrong token.
"""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kv.transfer import decode
from engine.types import GenerationOutput, GenerationRequest
from tests.engine.drafting import Oracle
from tests.engine.simulation import expected_tokens, simulated_engine
from tests.engine.tiny import Clock, check_blocks, last, run, tiny_chain, tiny_request

NUM_BLOCKS = 9
MAX_RUNNING = 4
MAX_TOKENS_PER_STEP = 24
# Far above what any history here can need if each step moves someone forward.
MAX_STEPS = 20_000

# Prompts that share beginnings of several lengths, so that prefixes are matched, awaited, forked and evicted.
PROMPTS = st.builds(
    lambda letter, shared, own, n: [letter] * shared + [own] * n,
    st.sampled_from([1, 2]),
    st.sampled_from([0, 15, 16, 17, 40, 64]),
    st.integers(3, 5),
    st.integers(1, 20),
)
TENANTS = st.sampled_from(["a", "b"])


class EngineMachine(RuleBasedStateMachine):
    """Drives the engine. `num_steps` counts the steps of all histories, `seen` what has happened in them."""

    num_steps: ClassVar[int] = 0
    seen: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.requests: dict[str, GenerationRequest] = {}
        self.outputs: list[GenerationOutput] = []
        self.interrupted: set[str] = set()
        self.blobs: list[bytes] = []

    @initialize(share_right=st.sampled_from([None, 0.3, 0.9]), prefix_cache=st.sampled_from([True, True, False]))
    def start(self, share_right: float | None, *, prefix_cache: bool) -> None:
        self.oracle = None if share_right is None else Oracle(share_right=share_right)
        self.engine, self.executor = simulated_engine(
            NUM_BLOCKS,
            max_running=MAX_RUNNING,
            max_tokens_per_step=MAX_TOKENS_PER_STEP,
            prefix_cache=prefix_cache,
            clock=self.clock,
            proposer=self.oracle,
        )

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 40),
        num_choices=st.sampled_from([1, 1, 2, 4]),
        seed=st.integers(0, 3),
        tenant=TENANTS,
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
                EngineMachine.num_steps += 1
                check_blocks(self.engine)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        if ended := self.engine.cancel(request_id):
            self.outputs += ended
            self.interrupted.add(request_id)
            self.note("cancelled requests")

    @precondition(lambda self: self.engine.has_work)
    @rule(is_taint=st.booleans())
    def break_a_step(self, *, is_taint: bool) -> None:
        self.executor.fail_next, self.executor.taint_next = not is_taint, is_taint
        before = len(self.outputs)
        self.step(1)
        self.executor.fail_next = self.executor.taint_next = False
        self.step(1)  # one that works: a machine on which none does is another story
        broken = [output for output in self.outputs[before:] if output.finish_reason == "error"]
        self.interrupted |= {output.request_id for output in broken}
        self.note("broken steps")

    @rule(seconds=st.sampled_from([1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(prompt=PROMPTS, tenant=TENANTS)
    def export_elsewhere(self, prompt: list[int], tenant: str) -> None:
        """The KV that another worker has computed for a prompt."""
        other, _ = simulated_engine(NUM_BLOCKS, max_tokens_per_step=MAX_TOKENS_PER_STEP)
        run(other, [tiny_request("r", prompt, max_tokens=1, tenant=tenant)])
        self.blobs.append(other.kv.export(tiny_chain(tenant).append(prompt)))

    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        """What a request has filled so far, its prompt and what was right of its drafts."""
        filled = [keys for keys in map(self.engine.kv_keys, self.requests) if keys]
        if filled:
            self.blobs.append(self.engine.kv.export(data.draw(st.sampled_from(filled))))

    @precondition(lambda self: self.blobs)
    @rule(data=st.data(), is_damaged=st.booleans())
    def load(self, data: st.DataObject, *, is_damaged: bool) -> None:
        blob = data.draw(st.sampled_from(self.blobs))
        num_blocks = sum(1 for _ in decode(blob, self.executor.kv_layout))
        if is_damaged:
            place = data.draw(st.integers(0, len(blob) - 1))
            blob = blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]
        imported = self.engine.kv.load(blob)
        num_usable = imported.num_written + imported.num_present
        assert num_usable < num_blocks if is_damaged and num_blocks else num_usable <= num_blocks
        self.note("imported blocks", imported.num_written)

    @invariant()
    def running_sequences_and_blocks_stay_within_bounds(self) -> None:
        check_blocks(self.engine)
        assert self.engine.stats().num_running <= MAX_RUNNING
        assert all(plan.num_tokens <= MAX_TOKENS_PER_STEP for plan in self.executor.plans[-12:])

    def teardown(self) -> None:
        """Everything ends, and has given what it should have."""
        for _ in range(MAX_STEPS):
            if not self.engine.has_work:
                break
            self.outputs += self.engine.step()
            EngineMachine.num_steps += 1
        assert not self.engine.has_work, "somebody starves"
        check_blocks(self.engine)
        assert self.oracle is None or not self.oracle.known, "the proposer was not told of every end"
        for request in self.requests.values():
            for choice in range(request.sampling.num_choices):
                self.check_choice(request, choice)
        stats = self.engine.stats()
        self.note("preemptions", stats.num_preemptions)
        self.note("accepted draft tokens", stats.num_accepted_tokens)
        self.note("refused draft tokens", stats.num_draft_tokens - stats.num_accepted_tokens)
        self.note("forked choices", sum(request.sampling.num_choices > 1 for request in self.requests.values()))

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

    @classmethod
    def note(cls, what: str, count: int = 1) -> None:
        EngineMachine.seen[what] = EngineMachine.seen.get(what, 0) + count
