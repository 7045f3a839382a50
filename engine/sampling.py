"""Turns sequences' sampling parameters into one batch of tensors, and the batch's results back into records.

The state of a sequence is its tokens: after a preemption or in another process it is rebuilt from them.
"""

import copy
import math
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from engine.plan import Sample, SequenceStart
from engine.structured.masks import NO_MASKS, StepMasks
from engine.structured.matcher import StructureMatcher
from kernels.sampling import RowLogprobs, SampledRows, SamplingRows, TokenValues
from schemas.sampling import MAX_TOP_LOGPROBS, SamplingParams, TokenLogprob


class TokenCounts:
    """How often each token occurred: parallel arrays, so that a batch takes them without a loop over tokens."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.token_ids = array("q")
        self.counts = array("q")
        self._places: dict[int, int] = {}
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count one more."""
        place = self._places.setdefault(token_id, len(self.token_ids))
        if place == len(self.token_ids):
            self.token_ids.append(token_id)
            self.counts.append(0)
        self.counts[place] += 1

    def copy(self) -> "TokenCounts":
        """The same counts, to go on from."""
        copied = TokenCounts()
        copied.token_ids, copied.counts, copied._places = self.token_ids[:], self.counts[:], self._places.copy()
        return copied


class SamplerState:
    """What sampling must know of one sequence. `eos_token_ids` end an output, unless its parameters ignore them.

    `matcher` holds the output to a structure, if it has one.
    """

    def __init__(
        self, start: SequenceStart, eos_token_ids: Sequence[int], matcher: StructureMatcher | None = None
    ) -> None:
        self.sequence_id = start.sequence_id
        self.choice = start.choice
        self.params = start.sampling
        self.index = len(start.token_ids) - start.num_prompt
        self.stop_token_ids = stop_token_ids(start.sampling, eos_token_ids)
        self.matcher = matcher
        if matcher is not None:
            matcher.rebuild(start.token_ids[start.num_prompt :])
        self.output = TokenCounts(start.token_ids[start.num_prompt :]) if _counts_output(start.sampling) else None
        self.seen = TokenCounts(start.token_ids) if start.sampling.repetition_penalty != 1 else None

    def append(self, token_id: int) -> None:
        """Count a token that was sampled."""
        self.index += 1
        for counts in (self.output, self.seen):
            if counts is not None:
                counts.add(token_id)
        if self.matcher is not None:
            self.matcher.accept(token_id)

    def along(self, draft: Sequence[int]) -> "list[SamplerState]":
        """This state, and copies of it after one, two and all tokens of a draft: a state for each row to sample.

        Masks are computed for all these rows at once, so the copies have no matcher.
        """
        states = [self]
        for token_id in draft:
            state = copy.copy(states[-1])
            state.matcher = None
            state.output = None if state.output is None else state.output.copy()
            state.seen = None if state.seen is None else state.seen.copy()
            state.append(token_id)
            states.append(state)
        return states

    @property
    def banned_token_ids(self) -> list[int]:
        """Tokens that would end the output before it has `min_tokens`."""
        return self.stop_token_ids if self.index < self.params.min_tokens else []


def stop_token_ids(params: SamplingParams, eos_token_ids: Sequence[int]) -> list[int]:
    """Tokens that end an output, sorted."""
    return sorted({*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)})


def sampling_rows(states: Sequence[SamplerState], masks: StepMasks = NO_MASKS) -> SamplingRows:
    """One row for each state."""
    params = [state.params for state in states]
    wanted = [row for row, p in enumerate(params) if p.top_logprobs is not None]
    return SamplingRows(
        temperature=torch.tensor([p.temperature for p in params]),
        top_p=torch.tensor([p.top_p for p in params]),
        top_k=torch.tensor([p.top_k for p in params]),
        min_p=torch.tensor([p.min_p for p in params]),
        seed=torch.tensor([p.seed for p in params]),
        choice=torch.tensor([state.choice for state in states]),
        index=torch.tensor([state.index for state in states]),
        repetition=_repetition(states),
        penalties=_penalties(states),
        bias=TokenValues.of(
            [(row, token_id, value) for row, p in enumerate(params) for token_id, value in p.logit_bias.items()]
        ),
        banned=_banned(states, masks),
        masks=masks.row_masks,
        logprob_rows=wanted,
        # Always the most: which of several equal tokens come first depends on how many are asked for.
        num_top=MAX_TOP_LOGPROBS,
    )


def samples(states: Sequence[SamplerState], sampled: SampledRows, masks: StepMasks = NO_MASKS) -> list[Sample]:
    """One record for each state, in the order of the rows."""
    logprobs = _logprob_records(states, sampled)
    rows = zip(states, sampled.token_ids.tolist(), sampled.is_finite.tolist(), strict=True)
    return [
        Sample(state.sequence_id, token_id, logprobs.get(row))
        if is_finite and row not in masks.faults
        else Sample(state.sequence_id, None, fault=masks.faults.get(row))
        for row, (state, token_id, is_finite) in enumerate(rows)
    ]


def _logprob_records(states: Sequence[SamplerState], sampled: SampledRows) -> dict[int, TokenLogprob]:
    logprobs: RowLogprobs | None = sampled.logprobs
    if logprobs is None:
        return {}
    chosen, top_ids, top = logprobs.chosen.tolist(), logprobs.top_token_ids.tolist(), logprobs.top.tolist()
    records = {}
    for place, row in enumerate(logprobs.rows):
        num_top = states[row].params.top_logprobs or 0
        likeliest = list(zip(top_ids[place], top[place], strict=True))[:num_top]
        # What a mask does not allow has no logprob, and JSON has no number for it.
        likeliest = [one for one in likeliest if one[1] > -math.inf]
        token_id = int(sampled.token_ids[row])
        records[row] = TokenLogprob(token_id=token_id, logprob=chosen[place], top=likeliest)
    return records


def _counts_output(params: SamplingParams) -> bool:
    return params.presence_penalty != 0 or params.frequency_penalty != 0


def _banned(states: Sequence[SamplerState], masks: StepMasks) -> TokenValues:
    """`min_tokens`, except where a structure leaves nothing but the end: it comes first."""
    return TokenValues.of(
        [
            (row, token_id, 0.0)
            for row, state in enumerate(states)
            if state.banned_token_ids and masks.leaves_any(row, without=state.banned_token_ids)
            for token_id in state.banned_token_ids
        ]
    )


def _repetition(states: Sequence[SamplerState]) -> TokenValues:
    found = [(row, state.seen, state.params.repetition_penalty) for row, state in enumerate(states)]
    return _concatenate(
        [
            (row, seen.token_ids, np.full(len(seen.token_ids), penalty))
            for row, seen, penalty in found
            if seen is not None
        ]
    )


def _penalties(states: Sequence[SamplerState]) -> TokenValues:
    """Presence once, frequency for each occurrence."""
    found = [(row, state.output, state.params) for row, state in enumerate(states)]
    return _concatenate(
        [
            (
                row,
                output.token_ids,
                params.presence_penalty + params.frequency_penalty * np.array(output.counts, dtype=np.float64),
            )
            for row, output, params in found
            if output is not None
        ]
    )


def _concatenate(parts: list[tuple[int, "array[int]", "np.ndarray[tuple[int], np.dtype[np.float64]]"]]) -> TokenValues:
    if not parts:
        return TokenValues.of([])
    rows = np.concatenate([np.full(len(token_ids), row, dtype=np.int64) for row, token_ids, _ in parts])
    token_ids = np.concatenate([np.array(token_ids, dtype=np.int64) for _, token_ids, _ in parts])
    values = np.concatenate([values for _, _, values in parts]).astype(np.float32)
    return TokenValues(torch.from_numpy(rows), torch.from_numpy(token_ids), torch.from_numpy(values))
