"""`make prove-engine`: histories until the engine has made so many steps in them. An interrupted run goes on where it
was, as long as what it proves is the same source; the outcome is recorded in benchmarks/results.
"""

import argparse
import logging
import time

import msgspec
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.histories import EngineMachine
from tests.proof import load_progress, record, save_progress, source_digest

NAME = "engine"
SOURCES = ("engine", "models/kv_keys.py", "tests/engine/histories.py", "tests/engine/simulation.py")

HISTORIES_A_ROUND = 100
ACTIONS_A_HISTORY = 50


class Progress(msgspec.Struct):
    """What was gone through without a fault. Rounds are seeds: round 7 is the same histories everywhere."""

    source: str
    num_rounds: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    seen: dict[str, int] = {}


def main() -> None:
    """Run rounds until there are enough steps, and record what they were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000, help="engine steps in all (default: %(default)s)")
    parser.add_argument("--restart", action="store_true", help="forget the progress of an interrupted run")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the steps that are told to fail are logged with their tracebacks
    fresh = Progress(source_digest(SOURCES))
    progress = fresh if arguments.restart else load_progress(NAME, fresh)
    while progress.num_steps < arguments.steps:
        run_round(progress)
        save_progress(NAME, progress)
        print(f"round {progress.num_rounds}: {progress.num_steps:,} of {arguments.steps:,} steps", flush=True)
    report(progress)


def run_round(progress: Progress) -> None:
    """One seed's histories; whatever is wrong raises, with the history that shows it."""
    started_s = time.monotonic()
    EngineMachine.num_steps, EngineMachine.seen = 0, dict(progress.seen)
    run_state_machine_as_test(
        seed(progress.num_rounds)(type("EngineHistories", (EngineMachine,), {})),
        settings=settings(
            max_examples=HISTORIES_A_ROUND,
            stateful_step_count=ACTIONS_A_HISTORY,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    progress.num_rounds += 1
    progress.num_steps += EngineMachine.num_steps
    progress.seen = dict(EngineMachine.seen)
    progress.seconds += time.monotonic() - started_s


def report(progress: Progress) -> None:
    """Write down what was proved, where and on what."""
    outcome = {
        "proof": "engine histories",
        "histories": progress.num_rounds * HISTORIES_A_ROUND,
        "seeds": [0, progress.num_rounds - 1],
        "steps": progress.num_steps,
        "seconds": round(progress.seconds, 1),
        "seen": progress.seen,
    }
    record(NAME, outcome)


if __name__ == "__main__":
    main()
