"""Fuzzing for as long as it is given: `make prove-fuzz FUZZ_MINUTES=10`.

It can be interrupted and goes on where it was: what failed once is kept and tried first, and targets that had less time
than others come first. All of it lies in `.headrace/`, the outcome of a run in `benchmarks/results/fuzz.json`.
"""

import argparse
import logging
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from benchmarks.report import RESULTS, machine
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parents[2] / ".headrace" / "prove-fuzz"
PROGRESS = FOLDER / "progress.json"

# One turn of a target: long enough to get somewhere, short enough that all have one in a minute.
_EXAMPLES_A_TURN = 1_000
# What takes longer than this hangs; what takes more memory than this was asked for by a number in the input.
_EXAMPLE_TIMEOUT_S = 20.0
_MAX_GROWTH_BYTES = 4 << 30


class Spent(msgspec.Struct):
    """What one target has had."""

    examples: int = 0
    seconds: float = 0.0
    failures: int = 0


class TookTooLongError(Exception):
    """One example did not end in time."""


def main() -> int:
    """Fuzz until the time is up; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    until_s = time.monotonic() + parser.parse_args().minutes * 60
    FOLDER.mkdir(parents=True, exist_ok=True)
    _limit_memory()
    _be_quiet()
    signal.signal(signal.SIGALRM, _on_alarm)
    total, this_run = _load(), {target.name: Spent() for target in TARGETS}
    try:
        while time.monotonic() < until_s:
            target = min(TARGETS, key=lambda one: total[one.name].seconds)
            _take_turn(target, total[target.name], this_run[target.name])
            PROGRESS.write_bytes(msgspec.json.encode(total))
    except KeyboardInterrupt:
        print("interrupted; the next run goes on here")
    _report(total, this_run)
    return 1 if any(spent.failures for spent in this_run.values()) else 0


def _load() -> dict[str, Spent]:
    known: dict[str, Spent] = {}
    if PROGRESS.exists():
        known = msgspec.json.decode(PROGRESS.read_bytes(), type=dict[str, Spent])
    return {target.name: known.get(target.name, Spent()) for target in TARGETS}


def _take_turn(target: Target, *accounts: Spent) -> None:
    spent = Spent()

    @settings(
        max_examples=_EXAMPLES_A_TURN,
        deadline=None,
        # A folder a target: Hypothesis tells tests apart by their source, which here is one and the same.
        database=DirectoryBasedExampleDatabase(FOLDER / "examples" / target.name.replace(" ", "-")),
        suppress_health_check=list(HealthCheck),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )
    @given(target.inputs)
    def run(value: Any) -> None:
        spent.examples += 1
        signal.setitimer(signal.ITIMER_REAL, _EXAMPLE_TIMEOUT_S)
        try:
            target.check(value)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    begun_s = time.monotonic()
    try:
        run()
    except Exception as error:  # noqa: BLE001 - every error is a finding; the other targets go on
        spent.failures = 1
        _show(target, error)
    spent.seconds = time.monotonic() - begun_s
    for account in accounts:
        account.examples += spent.examples
        account.seconds += spent.seconds
        account.failures += spent.failures


def _show(target: Target, error: Exception) -> None:
    print(f"FAILED {target.name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    for note in getattr(error, "__notes__", []):
        print(f"    {note[:2000]}", flush=True)


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise TookTooLongError(f"one example takes more than {_EXAMPLE_TIMEOUT_S:g} s")


def _be_quiet() -> None:
    """What is refused is also logged: here that is everything."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _limit_memory() -> None:
    """Address space as it is now, and so much more: an absurd allocation fails instead of the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _report(total: dict[str, Spent], this_run: dict[str, Spent]) -> None:
    width = max(map(len, total))
    print(f"{'target':{width}}  {'examples':>10} {'seconds':>8}  {'in all runs':>12}")
    for name, spent in this_run.items():
        failed = "  FAILED" if spent.failures else ""
        print(f"{name:{width}}  {spent.examples:>10,} {spent.seconds:>8.0f}  {total[name].examples:>12,}{failed}")
    seconds = sum(spent.seconds for spent in this_run.values())
    print(f"{sum(spent.examples for spent in this_run.values()):,} examples in {seconds:.0f} s")
    outcome = {
        "machine": machine() | {"command": f"make prove-fuzz FUZZ_MINUTES={seconds / 60:.0f}"},
        "benchmark": "fuzz",
        "figures": {name: msgspec.to_builtins(spent) for name, spent in this_run.items()},
        "all_runs": {name: spent.examples for name, spent in total.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fuzz.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
