"""A step of the engine that does not end: health turns red, and in the end the process ends, so that another goes on.

It ends without letting go of its partitions: what hung may be a request's fault, and only an attempt that ended without
a *released* mark counts as a strike.
"""

import faulthandler
import os
import sys
from collections.abc import Callable

from engine.thread import EngineThread
from runtime.logging import get_logger
from runtime.role import EXIT_FAILED
from runtime.stall import StallWatch
from schemas.errors import SettingsError
from schemas.settings import WorkerSettings

log = get_logger(__name__)

# Where steps are honestly long (a slow machine, long prompts), red is what takes far longer than the longest so far.
_LONGER_THAN_LONGEST = 3.0


class HangWatch:
    """Watches the steps of one engine. `end_process` is called once, from a thread, when a step takes `step_exit_s`."""

    def __init__(
        self, engine: EngineThread, settings: WorkerSettings, *, end_process: Callable[[], None] | None = None
    ) -> None:
        """SettingsError if the process would end before health can turn red."""
        if settings.step_exit_s <= settings.step_stall_s:
            raise SettingsError(
                f"worker.step_exit_s ({settings.step_exit_s:g}) must be above worker.step_stall_s "
                f"({settings.step_stall_s:g}): health turns red before the process ends."
            )
        self._settings = settings
        self._end_process = end_process or _end_process
        self._watch = StallWatch(
            lambda: engine.current_step_started_at, limit_s=settings.step_exit_s, on_limit=self._give_up
        )

    @property
    def problem(self) -> str | None:
        """What is wrong with the engine's present step, if it takes too long."""
        age_s, limit_s = self._watch.age_s, self._limit_s
        if age_s <= limit_s:
            return None
        return (
            f"a step of the engine has taken {age_s:.1f} s and is expected within {limit_s:g} s; at "
            f"{self._settings.step_exit_s:g} s the process ends"
        )

    def start(self) -> None:
        """Begin to watch."""
        self._watch.start()

    def stop(self) -> None:
        """Stop watching."""
        self._watch.stop()

    @property
    def _limit_s(self) -> float:
        """Half of what ends the process is red in any case."""
        stall_s, exit_s = self._settings.step_stall_s, self._settings.step_exit_s
        usual_s = min(_LONGER_THAN_LONGEST * self._watch.longest_ended_s, exit_s / 2)
        return max(stall_s, usual_s)

    def _give_up(self, age_s: float) -> None:
        log.error(
            "engine_hangs",
            step_s=round(age_s, 1),
            longest_ended_step_s=round(self._watch.longest_ended_s, 1),
            remedy="if steps are honestly so long, lower engine.max_tokens_per_step or raise worker.step_exit_s",
        )
        self._end_process()


def _end_process() -> None:
    """End at once, with what each thread was doing: the thread that hangs cannot be stopped in good order."""
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
    os._exit(EXIT_FAILED)
