"""Broker time."""

from runtime.clock import BrokerClock


class Monotonic:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_local_clock_is_the_first_guess() -> None:
    assert BrokerClock(Monotonic(), lambda: 5_000.0).now_ms() == 5_000_000.0


def test_time_goes_on_from_what_the_broker_said_last() -> None:
    monotonic = Monotonic()
    clock = BrokerClock(monotonic, lambda: 5_000.0)
    clock.hear(7_000_000)
    monotonic.now_s += 2.5
    assert clock.now_ms() == 7_002_500.0


def test_an_acknowledgement_without_a_time_changes_nothing() -> None:
    clock = BrokerClock(Monotonic(), lambda: 5_000.0)
    clock.hear(-1)
    assert clock.now_ms() == 5_000_000.0


def test_an_acknowledgement_that_is_heard_late_does_not_set_the_clock_back() -> None:
    monotonic = Monotonic()
    clock = BrokerClock(monotonic, lambda: 5_000.0)
    clock.hear(7_000_000)
    monotonic.now_s += 1.0
    clock.hear(7_000_100)
    assert 0 <= 7_001_000.0 - clock.now_ms() <= 1.0


def test_a_broker_whose_clock_was_set_back_is_followed_in_time() -> None:
    monotonic = Monotonic()
    clock = BrokerClock(monotonic, lambda: 5_000.0)
    clock.hear(7_000_000)
    for _ in range(100):
        monotonic.now_s += 60.0
        clock.hear(int(6_998_000 + (monotonic.now_s - 100.0) * 1000))
    assert clock.now_ms() == 6_998_000 + (monotonic.now_s - 100.0) * 1000
