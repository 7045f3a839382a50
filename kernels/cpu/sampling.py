"""Chooses tokens from logits, all rows at once, each row by its own numbers.

Sampling is the Gumbel-max trick in its exponential form: the largest weight / exponential is a draw from the weights
(Yellott, 1977; Maddison et al., "A* Sampling", 2014). Nothing has to be normalised, and a row's draw depends only on
its logits and (seed, choice, index).
"""

from dataclasses import dataclass, fields

import numpy as np
import torch

from kernels.cpu.philox import uniform, uniform_all
from kernels.sampling import RowLogprobs, RowMasks, SampledRows, SamplingRows, TokenValues

# Below this a temperature is greedy: dividing by it would overflow float32 for common logits.
GREEDY_TEMPERATURE = 1e-5
# Sorting a vocabulary takes milliseconds, finding its largest thousand tenths of one: top-k and top-p mostly fit.
NUM_CANDIDATES = 1024


def sample(logits: torch.Tensor, rows: SamplingRows) -> SampledRows:
    """Choose one token for each row of logits `[rows, vocab_size]` float32, which are left unchanged."""
    adjusted = _adjust(logits, rows)
    token_ids = adjusted.argmax(-1)
    drawn = torch.nonzero(rows.temperature >= GREEDY_TEMPERATURE)[:, 0]
    if len(drawn):
        token_ids[drawn] = _draw(_Draws.of(adjusted, rows, drawn))
    return SampledRows(
        token_ids=token_ids,
        is_finite=logits.amax(-1).isfinite(),
        logprobs=_logprobs(logits, token_ids, rows) if rows.logprob_rows else None,
    )


def _adjust(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    repetition, penalties, bias, banned = rows.repetition, rows.penalties, rows.bias, rows.banned
    if not (repetition or penalties or bias or banned or rows.masks):
        return logits
    adjusted = logits.clone()
    if rows.masks is not None:
        _mask(adjusted, rows.masks.rows.tolist(), rows.masks.bits)
    before = _at(adjusted, repetition)
    _set(adjusted, repetition, torch.where(before > 0, before / repetition.values, before * repetition.values))
    _set(adjusted, penalties, _at(adjusted, penalties) - penalties.values)
    _set(adjusted, bias, _at(adjusted, bias) + bias.values)
    _set(adjusted, banned, torch.full_like(banned.values, -torch.inf))
    return adjusted


def _mask(logits: torch.Tensor, rows: list[int], bits: torch.Tensor) -> None:
    """Put -inf, in place, for what the bits `[len(rows), words]` do not allow in these rows."""
    packed = (~bits.contiguous()).numpy().view(np.uint8)
    blocked = np.unpackbits(packed, axis=1, count=logits.shape[-1], bitorder="little")
    for row, mask in zip(rows, torch.from_numpy(blocked).view(torch.bool), strict=True):
        logits[row].masked_fill_(mask, -torch.inf)


def _at(logits: torch.Tensor, places: TokenValues) -> torch.Tensor:
    return logits[places.rows, places.token_ids]


def _set(logits: torch.Tensor, places: TokenValues, values: torch.Tensor) -> None:
    logits[places.rows, places.token_ids] = values


@dataclass(frozen=True, slots=True)
class _Draws:
    """The rows that are drawn at random. `scaled` `[rows, vocab_size]`; tokens below `lowest` `[rows]` are out."""

    scaled: torch.Tensor
    lowest: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor
    choice: torch.Tensor
    index: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, rows: SamplingRows, drawn: torch.Tensor) -> "_Draws":
        scaled = logits[drawn] / rows.temperature[drawn, None]
        # A probability of at least min_p times the largest; min_p 0 gives -inf: all stay.
        lowest = scaled.amax(-1) + torch.log(rows.min_p[drawn])
        kept = (rows.top_p, rows.top_k, rows.seed, rows.choice, rows.index)
        return cls(scaled, lowest, *(values[drawn] for values in kept))

    def select(self, places: torch.Tensor) -> "_Draws":
        return _Draws(*(getattr(self, field.name)[places] for field in fields(self)))


def _draw(draws: _Draws) -> torch.Tensor:
    """One token id for each of the rows. Which way a row goes depends on that row alone."""
    vocab_size = draws.scaled.shape[-1]
    limit = min(NUM_CANDIDATES, vocab_size)
    cut = (draws.top_k > 0) | (draws.top_p < 1)
    token_ids = torch.empty(len(cut), dtype=torch.int64)
    pending = cut & (draws.top_k <= limit)
    if pending.any():
        token_ids[pending], is_complete = _draw_from_largest(draws.select(pending), limit)
        pending[pending.clone()] = is_complete
    whole_order = cut & ~pending
    if whole_order.any():
        token_ids[whole_order] = _draw_from_largest(draws.select(whole_order), vocab_size)[0]
    if not cut.all():
        token_ids[~cut] = _draw_from_all(draws.select(~cut))
    return token_ids


def _draw_from_all(draws: _Draws) -> torch.Tensor:
    noise = uniform_all(draws.seed, draws.choice, draws.index, draws.scaled.shape[-1])
    return _race(draws.scaled, draws.lowest, noise)


def _draw_from_largest(draws: _Draws, num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and whether the candidates held all that top-p keeps (else the token is void)."""
    values, token_ids = draws.scaled.topk(num_candidates)
    weights = torch.exp(values - values[:, :1]).double()
    last = (draws.top_k - 1).clamp(min=0)[:, None]
    has_top_k = draws.top_k[:, None] > 0
    in_top_k = ~has_top_k | (values >= values.gather(1, last))
    weights.masked_fill_(~in_top_k, 0.0)
    everything = torch.exp(draws.scaled - values[:, :1]).sum(-1, keepdim=True, dtype=torch.float64)
    total = torch.where(has_top_k, weights.sum(-1, keepdim=True), everything)
    # A token stays while the likelier ones have not reached top_p; equal ones at the end stay together.
    mass = torch.where(draws.top_p < 1, draws.top_p.double(), torch.inf)[:, None] * total
    sums = weights.cumsum(-1)
    in_top_p = (sums - weights < mass) & in_top_k
    smallest = values.masked_fill(~in_top_p, torch.inf).amin(-1)
    noise = uniform(draws.seed, draws.choice, draws.index, token_ids)
    winner = _race(values, torch.maximum(draws.lowest, smallest), noise)
    is_complete = has_top_k[:, 0] | (sums[:, -1] >= mass[:, 0])
    return token_ids.gather(1, winner[:, None])[:, 0], is_complete


def _race(scaled: torch.Tensor, lowest: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Places of the winners among the tokens that are not below `lowest`. The likeliest token's speed is never 0."""
    weights = torch.exp(scaled - scaled.amax(-1, keepdim=True)).mul_(scaled >= lowest[:, None])
    return weights.double().div_(torch.log(noise).neg_()).argmax(-1)


def _masked_where(logits: torch.Tensor, rows: torch.Tensor, masks: RowMasks | None) -> torch.Tensor:
    """The logits `[n, vocab_size]` of these rows, masked where they have a mask."""
    if masks is None:
        return logits
    here, mine = torch.nonzero(rows[:, None] == masks.rows[None], as_tuple=True)
    masked = logits.clone()
    _mask(masked, here.tolist(), masks.bits[mine])
    return masked


def _logprobs(logits: torch.Tensor, token_ids: torch.Tensor, rows: SamplingRows) -> RowLogprobs:
    wanted = torch.tensor(rows.logprob_rows)
    logprobs = torch.log_softmax(_masked_where(logits[wanted], wanted, rows.masks), -1)
    top, top_token_ids = logprobs.topk(min(rows.num_top, logprobs.shape[-1]))
    chosen = logprobs.gather(1, token_ids[wanted][:, None])[:, 0]
    return RowLogprobs(rows=rows.logprob_rows, chosen=chosen, top_token_ids=top_token_ids, top=top)
