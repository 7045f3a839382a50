"""When bulk work runs beside people: it stands back while their prompts are computed, and has its turn all the same."""

from engine.outline import Outline

# So many steps in a row may be without bulk work.
MAX_STEPS_BACK = 4


class BulkTurns:
    """Counts the steps for which bulk work stood back.

    A prompt of a person is computed in a step of its own, without the rows of bulk work: its first token comes as soon
    as if nothing else were there. While people only decode, bulk work runs beside them, in shorter steps than alone.
    """

    def __init__(self) -> None:
        self._num_back = 0

    @property
    def is_due(self) -> bool:
        """Whether bulk work runs in this step, whatever people want."""
        return self._num_back >= MAX_STEPS_BACK

    def stand_back(self, outline: Outline) -> bool:
        """Whether bulk work is left out of a step that has only people's rows yet."""
        is_back = not self.is_due and any(num_rows > 1 for num_rows in outline.rows.values())
        self._num_back = self._num_back + 1 if is_back else 0
        return is_back

    def keep_back(self, outline: Outline, num_decoding: int) -> int:
        """How much of the budget bulk prompts leave alone: beside people half of what bulk work that decodes leaves.

        People wait for each step, for their next token and for their first. Half the rows cost bulk prompts some third
        of their speed (512 and 256 rows at a time, two AVX512 cores).
        """
        return max(0, outline.budget - num_decoding) // 2 if outline.rows else 0
