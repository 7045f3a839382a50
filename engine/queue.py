"""The waiting line: interactive before bulk, tenants by their share, then priority and age, and nobody for ever."""

import heapq

from engine.fairness import TenantShares
from engine.sequence import Sequence, SequenceState

# One step of priority is worth this much waiting: a priority orders a tenant's work and cannot starve it.
PRIORITY_WORTH_S = 5.0
# Bulk work that has waited this long gets one admission after each INTERACTIVE_PER_BULK interactive ones. A share, not
# precedence: else a backlog of old bulk work would stand before every interactive request.
BULK_AGEING_S = 30.0
INTERACTIVE_PER_BULK = 4

_Entry = tuple[float, int, Sequence]


class _Lane:
    """Waiting sequences of one class. Preempted ones come first: their readers have seen them begin."""

    def __init__(self, shares: TenantShares) -> None:
        self._shares = shares
        self._preempted: list[tuple[int, Sequence]] = []
        self._tenants: dict[str, list[_Entry]] = {}

    def push(self, sequence: Sequence) -> None:
        if sequence.num_preemptions:
            heapq.heappush(self._preempted, (sequence.sequence_id, sequence))
            return
        order = sequence.arrival_s - sequence.request.priority * PRIORITY_WORTH_S
        heap = self._tenants.setdefault(sequence.request.tenant, [])
        heapq.heappush(heap, (order, sequence.sequence_id, sequence))

    def peek(self) -> Sequence | None:
        """The next one; drops what has ended while it waited."""
        while self._preempted and self._preempted[0][1].state is SequenceState.FINISHED:
            heapq.heappop(self._preempted)
        if self._preempted:
            return self._preempted[0][1]
        tenant = self._next_tenant()
        return None if tenant is None else self._tenants[tenant][0][2]

    def pop(self, sequence: Sequence) -> None:
        """Take out the one that `peek` gave."""
        if sequence.num_preemptions:
            heapq.heappop(self._preempted)
        else:
            heapq.heappop(self._tenants[sequence.request.tenant])

    def _next_tenant(self) -> str | None:
        for tenant in list(self._tenants):
            heap = self._tenants[tenant]
            while heap and heap[0][2].state is SequenceState.FINISHED:
                heapq.heappop(heap)
            if not heap:
                del self._tenants[tenant]
        return min(
            self._tenants, key=lambda tenant: (self._shares.tokens(tenant), self._tenants[tenant][0]), default=None
        )


class WaitingQueue:
    """Sequences that wait to run. One that has ended is skipped when its turn comes."""

    def __init__(self, shares: TenantShares) -> None:
        self._interactive = _Lane(shares)
        self._bulk = _Lane(shares)
        self._since_bulk = 0
        self._promoted: Sequence | None = None

    def push(self, sequence: Sequence) -> None:
        """Add a sequence, also one that was popped and could not run yet."""
        (self._bulk if sequence.is_bulk else self._interactive).push(sequence)

    def pop(self, now_s: float) -> Sequence | None:
        """The sequence whose turn it is."""
        interactive, bulk = self._interactive.peek(), self._bulk.peek()
        self._promoted = None
        if bulk is not None and (interactive is None or self._is_due(bulk, now_s)):
            self._promoted = bulk if interactive is not None else None
            self._bulk.pop(bulk)
            return bulk
        if interactive is not None:
            self._interactive.pop(interactive)
        return interactive

    def gives_way(self, sequence: Sequence) -> bool:
        """Whether the popped sequence is bulk work whose age has not brought it in before interactive work."""
        return sequence.is_bulk and sequence is not self._promoted

    def note_admitted(self, sequence: Sequence) -> None:
        """Count an admission for the share of bulk work. What came in by its age is safe from interactive work."""
        if sequence is self._promoted:
            sequence.is_protected = True
        is_bulk = sequence.request.priority_class == "bulk"
        self._since_bulk = 0 if is_bulk else self._since_bulk + 1

    def _is_due(self, bulk: Sequence, now_s: float) -> bool:
        return now_s - bulk.arrival_s >= BULK_AGEING_S and self._since_bulk >= INTERACTIVE_PER_BULK
