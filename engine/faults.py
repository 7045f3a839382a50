"""What goes wrong inside the engine, as errors that say whose fault it is likely to be."""

from schemas.errors import EngineFault, Unsupported

# So many sequences may end because steps raised for them alone, with no step between that worked. More are no request's
# fault: the loop must end, so that another process serves what is left.
MAX_ENDED_IN_A_ROW = 3


class FailureLimit:
    """Counts sequences that were ended because a step raised, one after the other."""

    def __init__(self) -> None:
        self._num_in_a_row = 0

    def note_ended(self, fault: EngineFault) -> None:
        """Count one that is about to end. Raises the fault instead when there were too many."""
        self._num_in_a_row += 1
        if self._num_in_a_row > MAX_ENDED_IN_A_ROW:
            raise fault

    def note_worked(self) -> None:
        """A step worked."""
        self._num_in_a_row = 0


def step_fault(error: Exception) -> EngineFault:
    """What a request hears that cannot be retried after a step raised."""
    return _because(error, "The step that computed this request failed")


def output_fault(error: Exception) -> EngineFault:
    """What a request hears whose token could not be made text."""
    return _because(error, "A token of this request could not be given out")


def not_finite() -> EngineFault:
    """What a request hears whose logits are no numbers."""
    return EngineFault("The model gave numbers that are not finite: its weights or this machine are damaged.")


def no_way_on(reason: str) -> Unsupported:
    """What a request hears whose structure was accepted, and cannot be followed to its end."""
    return Unsupported(
        f"The structure of the answer cannot be followed any further ({reason}). Make it simpler.", param="structure"
    )


def _because(error: Exception, what: str) -> EngineFault:
    fault = EngineFault(
        f"{what} ({type(error).__name__}: {error}). Send it again; if it fails again, the worker's log has the details."
    )
    fault.__cause__ = error
    return fault
