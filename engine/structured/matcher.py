"""Where one answer stands in its grammar. It follows from the answer's tokens, so it can be rebuilt anywhere."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.structured.grammars import Grammar, Grammars

# One bit for each token, the lowest first; the last word is filled up with zeros.
Mask = npt.NDArray[np.int32]


class DraftMasks(NamedTuple):
    """Masks of a sequence's rows, from the first on. The row after them has a fault, or follows a token that no mask
    allows and is never reached."""

    masks: list[Mask]
    fault: str | None


class StructureMatcher:
    """The grammar's state after the tokens of one answer. Not thread-safe."""

    def __init__(self, grammar: Grammar, grammars: Grammars, *, vocab_size: int) -> None:
        self._grammar = grammar
        self._grammars = grammars
        self._num_words = -(-vocab_size // 32)
        self._token_ids: list[int] = []
        self.state: LLMatcher = grammar.start()

    @property
    def fault(self) -> str | None:
        """Why there is no way on, for people; None while there is one."""
        return self.state.get_error().partition("\n<")[0].strip() if self.state.is_error() else None

    @property
    def can_end(self) -> bool:
        """Whether the answer may end here."""
        return self.state.is_accepting()

    def rebuild(self, token_ids: Sequence[int]) -> None:
        """Be where these tokens lead, whatever was before. If they lead nowhere there is a fault."""
        self._token_ids = list(token_ids)
        self.state = self._grammar.start()
        self.state.consume_tokens(self._token_ids)

    def accept(self, token_id: int) -> None:
        """Take the next token. If the grammar does not allow it there is a fault."""
        self._token_ids.append(token_id)
        self.state.consume_token(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take the latest tokens back."""
        if num_tokens:
            self.rebuild(self._token_ids[:-num_tokens])

    def renew(self) -> None:
        """Go on in a fresh copy of the grammar: what the old one had learnt of other answers may have filled it up."""
        self._grammar = self._grammars.renewed(self._grammar)
        self.rebuild(self._token_ids)

    def mask(self) -> Mask:
        """int32 `[words]`: the tokens that may come next. Without meaning if there is a fault after this."""
        mask = np.empty(self._num_words, dtype=np.int32)
        self.state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask

    def masks_for(self, draft: Sequence[int]) -> DraftMasks:
        """The masks before each drafted token and after the last, as far as there are any. The state stays."""
        num_tokens, masks = len(self._token_ids), [self.mask()]
        for token_id in draft:
            if self.state.is_error() or not self.state.try_consume_tokens([token_id]):
                break
            masks.append(self.mask())
        fault = self.fault
        if len(masks) > 1 or draft:
            self.rebuild(self._token_ids[:num_tokens])
        return DraftMasks(masks, None) if fault is None else DraftMasks(masks[:-1], fault)
