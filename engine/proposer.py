"""Guesses what comes next, so that one step can check several tokens of a sequence at once (speculative decoding,
Leviathan et al., 2023). A guess never changes an output: a drafted token counts if it is the very one that is drawn.
"""

from collections.abc import Sequence as TokenSequence
from typing import Protocol

from engine.config import EngineConfig
from engine.plan import Sample
from engine.sequence import Sequence


class Proposer(Protocol):
    """Offers draft tokens. What it offers may be wrong, and must depend on the sequence's tokens alone: plans are
    repeated elsewhere. Called by the scheduler, between steps."""

    def propose(self, sequence: Sequence, max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens, of the model's vocabulary, that may follow the sequence's; often none."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class NgramIndex:
    """Where each run of `shortest` to `longest` tokens of one growing text occurred last, except at its very end.

    Each token is looked at once: extending and asking take time for the new tokens only.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._next_places: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self._num_indexed = 0

    def continuation(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """What followed the last time that the text's end occurred before; the longest end that did. `num_tokens`
        tokens, or none."""
        self._extend(token_ids)
        start = self._after_longest_match(token_ids)
        if start is None:
            return []
        period = len(token_ids) - start
        found = token_ids[start : start + num_tokens]
        # A text that repeats itself up to its very end is taken to go on so.
        while len(found) < num_tokens:
            found.append(found[-period])
        return found

    def _extend(self, token_ids: list[int]) -> None:
        for end in range(self._num_indexed + 1, len(token_ids)):
            for length, places in self._next_places.items():
                if length <= end:
                    places[tuple(token_ids[end - length : end])] = end
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)

    def _after_longest_match(self, token_ids: list[int]) -> int | None:
        for length, places in self._next_places.items():
            if length < len(token_ids):
                place = places.get(tuple(token_ids[-length:]))
                if place is not None:
                    return place
        return None


class NgramProposer:
    """Prompt lookup (Saxena, 2023): texts repeat themselves, answers repeat their prompts. Needs no second model."""

    def __init__(self, *, shortest: int, longest: int, num_tokens: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._num_tokens = num_tokens
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, sequence: Sequence, max_tokens: int) -> list[int]:
        """See `Proposer`."""
        index = self._indexes.get(sequence.sequence_id)
        if index is None:
            index = self._indexes[sequence.sequence_id] = NgramIndex(self._shortest, self._longest)
        return index.continuation(sequence.token_ids, min(max_tokens, self._num_tokens))

    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""
        self._indexes.pop(sequence.sequence_id, None)


def make_proposer(config: EngineConfig) -> Proposer | None:
    """The proposer that the settings ask for."""
    if config.proposer == "none":
        return None
    return NgramProposer(
        shortest=config.prompt_lookup_min,
        longest=config.prompt_lookup_max,
        num_tokens=config.num_speculative_tokens,
    )


def verified(draft: TokenSequence[int], drawn: TokenSequence[Sample]) -> list[Sample]:
    """The samples that count, of one sample for each row of a draft and one more for the row before it.

    While a drafted token is the one that was drawn in its place, the row after it was computed for the right text, and
    its sample is what would have been drawn without a draft. The first that is not drafted is the last that counts.
    """
    counted: list[Sample] = []
    for sample, token_id in zip(drawn, [*draft, None], strict=True):
        is_right = token_id is not None and sample.token_id == token_id
        counted.append(sample.as_drafted() if is_right else sample)
        if not is_right:
            break
    return counted
