"""A pytest plugin that says where the suite's time went: seconds per folder, at the end of each run."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

_seconds: defaultdict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    folder = str(Path(report.nodeid.split("::")[0]).parent)
    _seconds[folder] += report.duration
    _tests[folder] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per folder")
    for folder, seconds in sorted(_seconds.items(), key=lambda entry: entry[1], reverse=True):
        terminalreporter.write_line(f"{seconds:8.1f} s  {_tests[folder]:5d} tests  {folder}")
