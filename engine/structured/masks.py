"""Masks for all rows of a step at once: each row of a sequence that is held to a structure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import llguidance
import numpy as np
import torch

from engine.structured.matcher import Mask, StructureMatcher
from kernels.sampling import RowMasks


class MaskedRows(NamedTuple):
    """The rows of one sequence: `first` follows its tokens, the others one drafted token each."""

    first: int
    matcher: StructureMatcher
    draft: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What may be sampled in a step: `places` gives each masked row its place in `bits` int32 `[places, words]`.

    `faults` are rows for which there is no token, with the reason.
    """

    places: dict[int, int]
    bits: Mask
    faults: dict[int, str]

    @property
    def row_masks(self) -> RowMasks | None:
        """The same for the kernels; None if no row is masked."""
        if not self.places:
            return None
        rows = torch.tensor(list(self.places), dtype=torch.int64)
        return RowMasks(rows=rows, bits=torch.from_numpy(self.bits))

    def leaves_any(self, row: int, without: Iterable[int]) -> bool:
        """Whether the row may have any token but these."""
        place = self.places.get(row)
        if place is None:
            return True
        rest = self.bits[place].view(np.uint32).copy()
        for token_id in without:
            rest[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return bool(rest.any())


NO_MASKS = StepMasks({}, np.empty((0, 0), dtype=np.int32), {})


class MaskFiller:
    """Computes masks, several sequences at once in `num_threads` threads. Each mask follows from its sequence alone."""

    def __init__(self, *, num_threads: int, vocab_size: int) -> None:
        self._num_threads = num_threads
        self._num_words = -(-vocab_size // 32)
        self._threads: llguidance.LLExecutor | None = None

    def fill(self, sequences: Sequence[MaskedRows]) -> StepMasks:
        """The masks of these rows. All other rows of the step are free."""
        if not sequences:
            return NO_MASKS
        rows = [first + place for first, _, draft in sequences for place in range(1 + len(draft))]
        places = {row: place for place, row in enumerate(rows)}
        # All ones: a row behind a token that is not allowed has no mask, and is never reached.
        bits = np.full((len(rows), self._num_words), -1, dtype=np.int32)
        masks = StepMasks(places, bits, {})
        self._compute(sequences, masks)
        for sequence in sequences:
            if sequence.matcher.fault is not None:
                _fill_again(sequence, masks)
        return masks

    def _compute(self, sequences: Sequence[MaskedRows], masks: StepMasks) -> None:
        """The library has one call for sequences without a draft, and one for those with one."""
        target, num_bytes, num_rows = masks.bits.ctypes.data, self._num_words * 4, len(masks.bits)
        plain = [(matcher.state, masks.places[first]) for first, matcher, draft in sequences if not draft]
        drafted = [(matcher.state, masks.places[first], list(draft)) for first, matcher, draft in sequences if draft]
        if plain:
            self._executor().unsafe_compute_mask_ptr(plain, target, num_bytes, num_rows)
        if drafted:
            self._executor().unsafe_compute_mask_ptr_with_draft_token(drafted, target, num_bytes, num_rows)

    def _executor(self) -> llguidance.LLExecutor:
        if self._threads is None:
            self._threads = llguidance.LLExecutor(num_threads=self._num_threads)
        return self._threads


def _fill_again(sequence: MaskedRows, masks: StepMasks) -> None:
    """Row by row, in a fresh copy of the grammar: a fault that remains is the row's own, and no other's."""
    sequence.matcher.renew()
    found = sequence.matcher.masks_for(sequence.draft)
    if found.fault is not None:
        # That may have been the copy of somebody who has filled it up as well. This one is new.
        sequence.matcher.renew()
        found = sequence.matcher.masks_for(sequence.draft)
    for place in range(1 + len(sequence.draft)):
        row = sequence.first + place
        if place < len(found.masks):
            masks.bits[masks.places[row]] = found.masks[place]
        else:
            masks.bits[masks.places[row]] = -1
            if found.fault is not None:
                masks.faults[row] = found.fault
