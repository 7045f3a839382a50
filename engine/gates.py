"""Keeps sequences from computing what another one is computing just now: they wait at a gate until it is there."""

from engine.kv.manager import KVManager, PrefixMatch
from engine.sequence import Sequence, SequenceState

# What is waited for: the key of a block, or the id of a leader.
Gate = bytes | int


class Gates:
    """Parked sequences, by what they wait for."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._parked: dict[Gate, list[Sequence]] = {}

    def park(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Keep the sequence if it must wait; whether it does."""
        leader = sequence.leader
        gate = leader.sequence_id if leader is not None and _is_shut(leader) else match.awaited
        if gate is None:
            return False
        self._parked.setdefault(gate, []).append(sequence)
        return True

    def open(self) -> list[Sequence]:
        """Those whose wait is over: what they want is there, or will not come."""
        opened: list[Sequence] = []
        for gate, sequences in list(self._parked.items()):
            if not self._keeps_shut(gate, sequences[0]):
                opened += self._parked.pop(gate)
        return opened

    def _keeps_shut(self, gate: Gate, sequence: Sequence) -> bool:
        if isinstance(gate, bytes):
            return self._kv.is_claimed(gate)
        return sequence.leader is not None and _is_shut(sequence.leader)


def _is_shut(leader: Sequence) -> bool:
    """Whether a leader has still to compute the prompt that its followers share."""
    return leader.state is not SequenceState.FINISHED and leader.num_computed < leader.num_prompt
