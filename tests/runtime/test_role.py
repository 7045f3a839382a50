"""The life of a role's process, as real processes: start, ready, signals, failures, exit codes."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tied import tied

ROOT = Path(__file__).parent.parent.parent


class RoleProcess:
    """One such process; its log lines are read as they come."""

    def __init__(self, way: str) -> None:
        self.process = subprocess.Popen(
            tied(sys.executable, "-m", "tests.runtime.role_process", way),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []

    def until(self, event: str) -> dict[str, Any]:
        """Read the log up to this event."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line: dict[str, Any] = json.loads(text)
            self.lines.append(line)
            if line["event"] == event:
                return line
        raise AssertionError(f"no {event} in {self.lines}")

    def end(self) -> int:
        """Read the rest of the log; the exit code."""
        assert self.process.stderr is not None
        self.lines += [json.loads(text) for text in self.process.stderr]
        return self.process.wait(30)

    def event(self, name: str) -> dict[str, Any]:
        return next(line for line in self.lines if line["event"] == name)

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@contextmanager
def role(way: str) -> Iterator[RoleProcess]:
    started = RoleProcess(way)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        assert started.process.stderr is not None
        started.process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_in_good_order(number: signal.Signals) -> None:
    with role("good") as one:
        port = one.until("starting")["metrics_port"]
        one.until("ready")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            assert answer.status == 200
        one.process.send_signal(number)
        assert one.end() == 0
        assert one.events[-3:] == ["stopping", "stop_called", "stopped"]


def test_a_second_signal_ends_a_stop_that_hangs() -> None:
    with role("stop-hangs") as one:
        one.until("ready")
        one.process.send_signal(signal.SIGTERM)
        one.until("stop_called")
        one.process.send_signal(signal.SIGTERM)
        assert one.end() == 130


def test_a_signal_during_the_start_lets_it_clean_up() -> None:
    with role("start-hangs") as one:
        one.until("hanging")
        one.process.send_signal(signal.SIGTERM)
        assert one.end() == 0
        assert "start_cleaned_up" in one.events
        assert "ready" not in one.events


def test_an_error_of_ours_ends_in_one_line_without_a_traceback() -> None:
    with role("start-refuses") as one:
        assert one.end() == 1
        assert one.event("failed")["error"] == "topics are missing: create them"
        assert "exception" not in one.event("failed")
        assert "stop_called" in one.events


@pytest.mark.parametrize("way", ["start-breaks", "run-breaks"])
def test_any_other_fault_ends_with_a_traceback_after_a_stop(way: str) -> None:
    with role(way) as one:
        assert one.end() == 1
        assert "ValueError" in json.dumps(one.event("failed"))
        assert "stop_called" in one.events


def test_work_that_ends_by_itself_ends_the_process() -> None:
    with role("run-ends") as one:
        assert one.end() == 0


def test_a_stop_that_breaks_is_a_failure_and_no_hanging_process() -> None:
    with role("stop-breaks") as one:
        one.until("ready")
        one.process.send_signal(signal.SIGTERM)
        assert one.end() == 1
        assert "ValueError" in json.dumps(one.event("failed"))
