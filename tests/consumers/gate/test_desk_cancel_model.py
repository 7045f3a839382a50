"""The model of sessions once more, with somebody who cancels: before, while and after a turn waits or runs."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from consumers.cancels import CancelBook
from consumers.gate.desk import Desk
from consumers.gate.round import Round
from schemas.control import Cancel
from tests.consumers.gate.test_desk_model import (
    MAX_PARKED,
    NAMES,
    ONE_PARTITION,
    REQUESTS,
    SESSIONS,
    TENANTS,
    GateModel,
)


class CancelModel(GateModel):
    """All that is promised of sessions holds; who is cancelled while it waits is never forwarded."""

    cancels: CancelBook

    def start_gate(self) -> None:
        """A new gate reads the same cancels again."""
        super().start_gate()
        if not hasattr(self, "cancels"):
            self.cancels = CancelBook(86_400.0)
        self.desk = Desk(NAMES, 0, self.desk._book, ONE_PARTITION, max_parked=MAX_PARKED, cancel_of=self.cancels.find)

    @precondition(lambda self: self.sent)
    @rule(index=st.integers(0, 99), is_seen=st.booleans())
    def somebody_cancels(self, index: int, is_seen: bool) -> None:
        """`is_seen`: the gate hears of it at once; else when it looks after its sessions the next time."""
        sent = self.sent[-1 - index % len(self.sent)]
        self.cancels.note(
            Cancel(request_id=sent.request_id, tenant=sent.tenant, session=sent.session), int(self.now_ms)
        )
        if is_seen:
            self.the_gate_looks_after_its_sessions()

    @rule(session=st.sampled_from(SESSIONS))
    def a_session_fills(self, session: str) -> None:
        for _ in range(MAX_PARKED):
            self.a_client_sends("default", session, 600)
        self.the_gate_decides(REQUESTS, 2 * MAX_PARKED, commits=False)

    @rule(number=st.integers(0, 40), tenant=st.sampled_from(TENANTS), session=st.sampled_from(SESSIONS))
    def somebody_cancels_who_may_come(self, number: int, tenant: str, session: str) -> None:
        """An id that nobody has sent yet, or that another session has."""
        self.cancels.note(Cancel(request_id=f"r{number}", tenant=tenant, session=session), int(self.now_ms))

    def the_gate_looks_after_its_sessions(self) -> None:
        out = Round()
        self.desk.time_passed(self.now_ms, out)
        self.decided(out)
        assert self.desk._book.due(self.now_ms, self.cancels.find) == []


TestCancelModel = CancelModel.TestCase
TestCancelModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
