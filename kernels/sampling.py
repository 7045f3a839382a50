"""What sampling takes and gives: one row a sequence, penalties as flat lists so that a batch is one set of tensors."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class TokenValues:
    """Values for single (row, token) places of the logits, each place at most once.

    rows, token_ids: int64 `[n]`; values: float32 `[n]`.
    """

    rows: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, places: list[tuple[int, int, float]]) -> "TokenValues":
        """From (row, token id, value) triples."""
        rows, token_ids, values = zip(*places, strict=True) if places else ((), (), ())
        return cls(
            rows=torch.tensor(rows, dtype=torch.int64),
            token_ids=torch.tensor(token_ids, dtype=torch.int64),
            values=torch.tensor(values, dtype=torch.float32),
        )

    def __bool__(self) -> bool:
        return len(self.rows) > 0


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The tokens that some rows may have: no other has any probability. The token of a row that may have none is void.

    rows: int64 `[n]`, each at most once; bits: int32 `[n, words]`, one bit for each token of the vocabulary, the lowest
    first.
    """

    rows: torch.Tensor
    bits: torch.Tensor


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row's token is chosen. All `[rows]`: temperature, top_p, min_p float32, the others int64.

    Temperature 0 is greedy; top_p 1, top_k 0 and min_p 0 are off. The random numbers of a row depend on `seed`,
    `choice` and `index` alone.

    Applied in this order: `masks`, `repetition` (divides positive logits and multiplies negative ones), `penalties`
    (subtracted), `bias` (added), `banned` (values unused), temperature, min_p, top_k, top_p.

    `logprob_rows` are rows whose logprobs are wanted, with the `num_top` likeliest tokens. Which of several equal ones
    come first depends on `num_top`, so it should never change.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    choice: torch.Tensor
    index: torch.Tensor
    repetition: TokenValues
    penalties: TokenValues
    bias: TokenValues
    banned: TokenValues
    masks: RowMasks | None = None
    logprob_rows: list[int] = field(default_factory=list)
    num_top: int = 0


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Natural logarithms of the model's own distribution, before penalties and temperature. In a masked row it is that
    of the tokens which the mask allows; all others have -inf.

    `rows` int64 `[n]`; `chosen` float32 `[n]`; `top_token_ids` int64 and `top` float32 `[n, num_top]`, likeliest first.
    """

    rows: list[int]
    chosen: torch.Tensor
    top_token_ids: torch.Tensor
    top: torch.Tensor


@dataclass(frozen=True, slots=True)
class SampledRows:
    """`token_ids` int64 `[rows]`; `is_finite` bool `[rows]`: a row whose logits are not finite has no valid token."""

    token_ids: torch.Tensor
    is_finite: torch.Tensor
    logprobs: RowLogprobs | None
