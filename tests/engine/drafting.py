"""A proposer that knows what will be said, and lies now and then, so that drafts of all kinds occur."""

from collections.abc import Callable

from engine.sequence import Sequence
from tests.engine.simulation import expected_tokens, hashed


def simulated_tokens(sequence: Sequence) -> list[int]:
    """What the simulated model says."""
    return expected_tokens(sequence.request, sequence.choice)


class Oracle:
    """Drafts the true continuation of each sequence, but for wrong tokens that the sequence and the place decide.

    `tells` gives a sequence's whole output; `share_right` is the share of tokens that are right. Keeps what it has not
    been told to forget, so that leaks show.
    """

    def __init__(
        self,
        tells: Callable[[Sequence], list[int]] = simulated_tokens,
        *,
        num_tokens: int = 5,
        share_right: float = 0.7,
    ) -> None:
        self.tells = tells
        self.num_tokens = num_tokens
        self.share_right = share_right
        self.known: dict[int, list[int]] = {}

    def propose(self, sequence: Sequence, max_tokens: int) -> list[int]:
        """See `Proposer`."""
        tokens = self.known.get(sequence.sequence_id)
        if tokens is None:
            tokens = self.known[sequence.sequence_id] = self.tells(sequence)
        start = sequence.num_output
        draft = tokens[start : start + min(self.num_tokens, max_tokens)]
        return [
            token_id if hashed(f"{sequence.sequence_id}/{start}/{i}") < self.share_right else (token_id + 1) % 256
            for i, token_id in enumerate(draft)
        ]

    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""
        self.known.pop(sequence.sequence_id, None)
