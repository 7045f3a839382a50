"""Which sequences of a step that raised can go on. A step does not say whom it raised for, so each is tried alone."""

from collections import deque

from engine.sequence import Sequence, SequenceState

# After so many failed steps in company, and as many passed trials, a sequence stays alone to its end: what it meets in
# company (no memory for so many rows, say) will not go away.
MAX_FAILURES = 3


class Suspects:
    """Sequences of failed steps, in the order in which they are tried."""

    def __init__(self) -> None:
        self._line: deque[Sequence] = deque()
        self._num_failures: dict[int, int] = {}  # by sequence id

    @property
    def next(self) -> Sequence | None:
        """The one to run alone now."""
        while self._line and self._line[0].state is SequenceState.FINISHED:
            self._line.popleft()
        return self._line[0] if self._line else None

    def accuse(self, sequence: Sequence) -> bool:
        """Count a failed step; False if the sequence was on trial, and so must have been the reason."""
        if sequence is self.next:
            return False
        self._num_failures[sequence.sequence_id] = self._num_failures.get(sequence.sequence_id, 0) + 1
        self._line.append(sequence)
        return True

    def clear(self, sequence: Sequence) -> None:
        """It has its next token: if it was on trial, it has passed."""
        if self._line and sequence is self.next and self._num_failures[sequence.sequence_id] < MAX_FAILURES:
            self._line.popleft()

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._num_failures.pop(sequence.sequence_id, None)
