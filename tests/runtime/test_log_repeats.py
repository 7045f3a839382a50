"""One thing that a library says again and again is written once in a while, and everything else always."""

import logging

import pytest

from runtime.log_repeats import INTERVAL_S, RepeatFilter


class Log:
    """A logger's handler behind the filter, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._filter = RepeatFilter("aiokafka", clock=lambda: self.now_s)
        self.lines: list[str] = []

    def say(self, message: str, *args: object, logger: str = "aiokafka.conn", error: Exception | None = None) -> None:
        exc_info = (type(error), error, None) if error else None
        record = logging.LogRecord(logger, logging.ERROR, "", 0, message, args, exc_info)
        if self._filter.filter(record):
            self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_message_is_written_once_an_interval_and_then_says_how_often_it_was_said(log: Log) -> None:
    for node in range(1_000):
        log.say("no connection to %s", node)
    log.now_s = INTERVAL_S
    log.say("no connection to %s", 7)
    log.now_s = 2 * INTERVAL_S
    log.say("no connection to %s", 8)
    assert log.lines == ["no connection to 0", "no connection to 7 (999 more like it)", "no connection to 8"]


def test_other_messages_and_other_loggers_are_written(log: Log) -> None:
    log.say("one")
    log.say("two")
    log.say("one", logger="aiokafka.producer")
    assert log.lines == ["one", "two", "one"]


def test_our_own_lines_are_always_written(log: Log) -> None:
    for _ in range(3):
        log.say("refused", logger="consumers.gate.desk")
    assert len(log.lines) == 3


def test_tracebacks_are_always_written(log: Log) -> None:
    for _ in range(3):
        log.say("it broke", error=RuntimeError("broken"))
    assert len(log.lines) == 3


def test_messages_that_hold_percent_signs_survive(log: Log) -> None:
    log.say("100 %")
    log.say("100 %")
    log.now_s = INTERVAL_S
    log.say("100 %")
    assert log.lines == ["100 %", "100 % (1 more like it)"]
