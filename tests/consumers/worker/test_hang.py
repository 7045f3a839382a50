"""A step that hangs: red first, then the end of the process; a slow machine is not taken for a hanging one."""

import msgspec
import pytest

from consumers.worker.hang import HangWatch
from engine.thread import EngineThread
from runtime.stall import TICK_S, StallTimer
from schemas.errors import SettingsError
from schemas.settings import WorkerSettings
from tests.engine.simulation import simulated_engine

RED_WITHIN_S = 5.0


def hang_watch(**settings: float) -> HangWatch:
    engine, _ = simulated_engine(8)
    return HangWatch(EngineThread(engine), msgspec.structs.replace(WorkerSettings(), **settings))


def after(watch: HangWatch, *steps_s: float) -> str | None:
    """The problem that a watch sees at the end of steps of these lengths, of which the last one is not over."""
    timer = StallTimer()
    now_s = 0.0
    for number, step_s in enumerate(steps_s):
        end_s = now_s + step_s
        while now_s <= end_s:
            timer.look(number, now_s)
            now_s += TICK_S
    watch._watch._timer = timer  # the thread that would look is not started
    return watch.problem


def test_a_step_that_hangs_is_red_within_5_s_and_short_ones_never() -> None:
    watch = hang_watch()
    assert after(watch, *[0.3] * 50) is None
    assert after(watch, *[0.3] * 50, 3.5) is None
    problem = after(watch, *[0.3] * 50, RED_WITHIN_S)
    assert problem is not None
    assert "a step of the engine has taken" in problem


def test_where_steps_are_honestly_long_red_is_what_takes_far_longer() -> None:
    watch = hang_watch()
    assert after(watch, 3.5, 9.0) is None
    assert after(watch, 3.5, 12.0) is not None


def test_however_long_steps_are_it_is_red_before_the_process_ends() -> None:
    assert after(hang_watch(step_exit_s=20.0), 15.0, 9.0) is None
    assert after(hang_watch(step_exit_s=20.0), 15.0, 11.0) is not None


@pytest.mark.parametrize(("stall_s", "exit_s"), [(4.0, 4.0), (5.0, 1.0)])
def test_a_process_that_would_end_before_it_is_red_is_refused(stall_s: float, exit_s: float) -> None:
    with pytest.raises(SettingsError, match=r"worker\.step_exit_s"):
        hang_watch(step_stall_s=stall_s, step_exit_s=exit_s)


def test_the_process_is_ended_once_with_a_log_line_that_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    engine, _ = simulated_engine(8)
    ended: list[bool] = []
    watch = HangWatch(EngineThread(engine), WorkerSettings(), end_process=lambda: ended.append(True))
    watch._give_up(31.0)
    assert ended == [True]
    shown = capsys.readouterr()
    assert "lower engine.max_tokens_per_step" in shown.out + shown.err
