"""How every benchmark ends: a table for people, a file in results/ and one JSON object as the last line."""

import datetime
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

_NUM_RESAMPLES = 2_000
_PACKAGES = ("torch", "aiokafka", "faust-streaming", "msgspec", "numpy")


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its 95 % bootstrap interval (Efron and Tibshirani, 1993)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


class Goal(msgspec.Struct, frozen=True):
    """A figure that was promised. It is met at the worse end of its interval."""

    name: str
    value: Interval | float
    goal: float
    better: Literal["lower", "higher"]

    @property
    def is_met(self) -> bool:
        """Whether the worse end reaches the goal."""
        if isinstance(self.value, Interval):
            worse = self.value.high if self.better == "lower" else self.value.low
        else:
            worse = self.value
        return worse <= self.goal if self.better == "lower" else worse >= self.goal


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie: the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interval(samples: Sequence[float], of: Callable[[Sequence[float]], float] = statistics.median) -> Interval:
    """A statistic of the samples with its bootstrap interval. The resampling is seeded: the same samples, same ends."""
    rng = random.Random(0)
    drawn = sorted(of(rng.choices(samples, k=len(samples))) for _ in range(_NUM_RESAMPLES))
    return Interval(of(samples), drawn[int(0.025 * _NUM_RESAMPLES)], drawn[int(0.975 * _NUM_RESAMPLES)])


def finish(benchmark: str, figures: dict[str, object], goals: Sequence[Goal], rows: Sequence[Sequence[str]]) -> None:
    """Print the table (its first row is the heading), write the results file, print the JSON line."""
    table = Table(*rows[0], title=benchmark)
    for row in rows[1:]:
        table.add_row(*row)
    console = Console(width=140)
    console.print(table)
    for goal in goals:
        sign = "≤" if goal.better == "lower" else "≥"
        console.print(f"{'met   ' if goal.is_met else 'MISSED'} {goal.name}: {goal.value} (goal {sign} {goal.goal})")
    outcome = {
        "benchmark": benchmark,
        "figures": figures,
        "goals": {goal.name: {"value": goal.value, "goal": goal.goal, "met": goal.is_met} for goal in goals},
    }
    encoded = msgspec.json.encode(outcome)
    RESULTS.mkdir(exist_ok=True)
    record = msgspec.json.format(msgspec.json.encode({"machine": machine(), **outcome}), indent=2)
    (RESULTS / f"{benchmark}.json").write_bytes(record + b"\n")
    print(encoded.decode())


def machine() -> dict[str, object]:
    """What must stand beside each figure: processor, versions, commit and command."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        "commit": _commit(),
        "command": "python -m benchmarks." + Path(sys.argv[0]).stem + "".join(f" {part}" for part in sys.argv[1:]),
    }


def _processor() -> str:
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    facts = {name.strip(): value.strip() for name, _, value in lines}
    found = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in facts.get("flags", "").split()]
    model = f"{facts.get('model name', platform.processor())} (family {facts.get('cpu family')}, {facts.get('model')})"
    return f"{model}: {' '.join(found)}"


def _commit() -> str:
    """The commit that is measured. The results of other benchmarks beside it are no change to it."""
    changes = _git("status", "--porcelain", "--", ":(top)", ":(top,exclude)benchmarks/results")
    return _git("rev-parse", "--short", "HEAD") + ("+changes" if changes else "")


def _git(*arguments: str) -> str:
    asked = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=RESULTS.parent)
    return asked.stdout.strip()
