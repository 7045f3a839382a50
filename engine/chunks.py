"""How many rows of a prompt a step takes. Deep in a context a row costs more, and its step must not take longer for it:
who waits for the next step waits for this one, and a step that takes too long looks like one that hangs."""

# A row attends to all positions before it: so many cost about as much as all else that a row needs. Measured with
# SmolLM2-135M on two AVX512 cores, 512 rows at a time: 1.7 ms of processor time a row at the beginning of a context of
# 8,192, 12 ms at its end.
POSITIONS_WORTH_A_ROW = 1024


def row_weight(position: int) -> int:
    """What one row at a position takes from the budget of a step."""
    return 1 + position // POSITIONS_WORTH_A_ROW


def chunk(position: int, num_pending: int, budget: int) -> int:
    """Rows from a position on that fit a budget, at most those that are pending. At least one if there is any budget:
    whoever has a turn moves on."""
    return min(num_pending, max(budget // row_weight(position), min(budget, 1), 0))
