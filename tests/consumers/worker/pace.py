"""A steady pace for the tiny model, so that a stream is still running when a test interferes, on any machine."""

import time

from engine.executor import Executor, LocalExecutor
from engine.plan import StepPlan, StepResult

# A hundred steps a second: fast enough for tests, slow enough to be caught in the middle.
STEP_S = 0.01

_run = LocalExecutor.run


def run_at_pace(executor: Executor, plan: StepPlan) -> StepResult:
    """Compute a step, no sooner than `STEP_S` after it was asked for."""
    time.sleep(STEP_S)
    return _run(executor, plan)  # type: ignore[arg-type] # always a local one
