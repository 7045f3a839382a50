"""A steady pace for the tiny model, so that a stream is still running when a test interferes, on any machine."""

import threading
import time

from engine.executor import Executor, LocalExecutor
from engine.plan import StepPlan, StepResult

# A hundred steps a second: fast enough for tests, slow enough to be caught in the middle.
STEP_S = 0.01

# A prompt that holds this token hangs `run_or_hang`.
HANG_TOKEN = 250

_run = LocalExecutor.run


def run_at_pace(executor: Executor, plan: StepPlan) -> StepResult:
    """Compute a step, no sooner than `STEP_S` after it was asked for."""
    time.sleep(STEP_S)
    return _run(executor, plan)  # type: ignore[arg-type] # always a local one


def run_or_hang(executor: Executor, plan: StepPlan) -> StepResult:
    """As above, until a sequence begins that never comes back."""
    if any(HANG_TOKEN in start.token_ids for start in plan.started):
        threading.Event().wait()
    return run_at_pace(executor, plan)
