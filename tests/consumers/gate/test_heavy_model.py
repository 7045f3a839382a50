"""The gate's model again, with requests and results that do not fit a record, and a storage that takes its time.

A request that waits for storage holds the committed offset back; what is done behind it is not decided again all the
same, since each owner knows it from its predecessor's last commit.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from consumers.gate.admission import Deposit
from consumers.gate.deposits import Held
from consumers.gate.round import Fetch, Round
from schemas.claims import claim_for, fits
from schemas.contents import RESULT_CONTENTS
from schemas.results import Result
from tests.consumers.gate.builders import chat, encoded
from tests.consumers.gate.test_desk_model import (
    NAMES,
    ONE_PARTITION,
    REQUESTS,
    SESSIONS,
    TENANTS,
    GateModel,
    Sent,
    Stood,
)


class HeavyModel(GateModel):
    """What is in `claims` is durable. A gate loses the deposits and fetches that it has in hand."""

    # An ordinary turn of the model has some 350 bytes.
    admission_rules = ONE_PARTITION._replace(names=NAMES, max_inline_bytes=700)

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, bytes] = {}
        self.claims_results = False

    def start_gate(self) -> None:
        super().start_gate()
        self.deposits: list[Held] = []
        self.fetches: list[Fetch] = []

    # ---- clients and workers -----------------------------------------------------------------------------------------

    @rule(tenant=st.sampled_from(TENANTS), session=st.sampled_from(SESSIONS), ttl_s=st.sampled_from([5, 600]))
    def a_client_sends_much(self, tenant: str, session: str, ttl_s: int) -> None:
        request_id = f"r{len(self.sent)}"
        self.sent.append(Sent(tenant, session, request_id))
        body = chat("x" * 2_000, id=request_id, tenant=tenant, session=session, ttl_s=ttl_s)
        self.log[REQUESTS].append(Stood(encoded(body), timestamp_ms=int(self.now_ms)))

    @rule(is_heavy=st.booleans())
    def workers_have_much_to_say(self, is_heavy: bool) -> None:
        self.claims_results = is_heavy

    def add_result(self, result: Result) -> None:
        if self.claims_results and result.choices:
            content = RESULT_CONTENTS.taken(result)
            claim = claim_for(content, NAMES, tenant=result.tenant, now_ms=self.now_ms)
            self.claims[claim.object] = content
            result = RESULT_CONTENTS.claimed(result, claim)
        super().add_result(result)

    # ---- the gate ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.deposits)
    @rule(index=st.integers(0, 9), is_lost=st.booleans())
    def a_deposit_is_put(self, index: int, is_lost: bool) -> None:
        held = self.deposits.pop(index % len(self.deposits))
        assert isinstance(held.decision, Deposit)
        self.claims[held.decision.claim.object] = held.decision.content
        if is_lost:
            # A crash between the put and the transaction.
            self.the_gate_crashes()
            return
        out = Round()
        self.desk.deposit_put(held, out)
        self.decided(out)

    @precondition(lambda self: self.fetches)
    @rule(index=st.integers(0, 9))
    def a_result_is_fetched(self, index: int) -> None:
        fetch = self.fetches.pop(index % len(self.fetches))
        assert fetch.result.claim is not None
        whole = RESULT_CONTENTS.joined(fetch.result, self.claims[fetch.result.claim.object])
        out = Round()
        self.desk.result_fetched(fetch._replace(result=whole), self.now_ms, out)
        self.decided(out)

    # ---- what is promised --------------------------------------------------------------------------------------------

    @invariant()
    def an_object_is_there_before_the_turn_that_refers_to_it(self) -> None:
        for turn in self.turns:
            if (claim := turn.request.claim) is not None:
                assert fits(claim, self.claims[claim.object])

    @invariant()
    def nothing_is_in_memory_but_what_waits(self) -> None:
        assert (self.desk.num_held_bytes == 0) == (not self.deposits)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def decided(self, out: Round) -> None:
        super().decided(out)
        dropped = {held.position for held in out.dropped}
        self.deposits = [held for held in [*self.deposits, *out.deposits] if held.position not in dropped]
        self.fetches += out.fetches

    def step_towards_the_end(self) -> bool:
        while self.deposits:
            self.a_deposit_is_put(0, is_lost=False)
            self.maybe_crash()
        while self.fetches:
            self.a_result_is_fetched(0)
            self.maybe_crash()
        return super().step_towards_the_end()

    @property
    def is_busy(self) -> bool:
        return bool(self.deposits or self.fetches) or super().is_busy

    def decoded(self, value: bytes) -> object:
        """Results as they were before they were claimed, so that all promises of the model are asked of them."""
        result = super().decoded(value)
        if isinstance(result, Result) and result.claim is not None:
            return RESULT_CONTENTS.joined(result, self.claims[result.claim.object])
        return result


TestHeavyModel = HeavyModel.TestCase
TestHeavyModel.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
