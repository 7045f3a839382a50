"""From `headrace up` to the first token, with an empty data folder and with a used one; memory by process."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.report import Goal, finish, interval
from headrace.ensemble import headrace_command
from headrace.local.endpoints import read_endpoints

NUM_RUNS = 5
WARM_GOAL_S = 12.0
_POLL_S = 0.05
_STOP_TIMEOUT_S = 60


class Run:
    """One `headrace up`: how long to the first token, and who used how much memory."""

    def __init__(self, data_dir: Path) -> None:
        self._flags = ["--set", f"local.data_dir={data_dir}"]
        self._data_dir = data_dir
        self.first_token_s = 0.0
        self.rss_mb: dict[str, float] = {}

    def measure(self) -> "Run":
        """Start, ask, look at the memory, stop."""
        started_s = time.monotonic()
        up = subprocess.Popen([*headrace_command(), "up", *self._flags], stderr=subprocess.DEVNULL)
        try:
            while read_endpoints(self._data_dir) is None:
                if up.poll() is not None:
                    raise RuntimeError(f"headrace up ended with code {up.returncode}")
                time.sleep(_POLL_S)
            chat = [*headrace_command(), "chat", "Hi", "--max-tokens", "1", *self._flags]
            subprocess.run(chat, check=True, capture_output=True)
            self.first_token_s = time.monotonic() - started_s
            self.rss_mb = _memory(up.pid)
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(_STOP_TIMEOUT_S)
        return self


def main() -> None:
    """Measure cold and warm, and report."""
    cold, warm = [], []
    for number in range(NUM_RUNS):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            data_dir = Path(folder) / "data"
            cold.append(Run(data_dir).measure())
            warm.append(Run(data_dir).measure())
        print(f"run {number + 1}: cold {cold[-1].first_token_s:.1f} s, warm {warm[-1].first_token_s:.1f} s", flush=True)
    cold_s, warm_s = (interval([run.first_token_s for run in runs]) for runs in (cold, warm))
    rows = [["what", "value"], ["cold, s", str(cold_s)], ["warm, s", str(warm_s)]]
    rows += [[f"memory of {name}, MB", f"{megabytes:.0f}"] for name, megabytes in warm[-1].rss_mb.items()]
    figures: dict[str, object] = {"cold_s": cold_s, "warm_s": warm_s, "rss_mb": warm[-1].rss_mb}
    finish("startup", figures, [Goal("warm start to first token, s", warm_s, WARM_GOAL_S, "lower")], rows)


def _memory(pid: int) -> dict[str, float]:
    """Resident memory in MB of each process below `headrace up`, by what it is."""
    found: dict[str, float] = {}
    for process in psutil.Process(pid).children(recursive=True):
        name = _role(process.cmdline())
        found[name] = found.get(name, 0.0) + process.memory_info().rss / 1e6
    return dict(sorted(found.items()))


def _role(command: list[str]) -> str:
    words = [os.path.basename(word) for word in command]  # noqa: PTH119 - words of a command, not paths
    known = {"kafka.Kafka": "kafka", "weed": "s3", "gate": "gate", "pipeline": "pipeline", "worker": "worker"}
    return next((role for word, role in known.items() if word in words), "helpers")


if __name__ == "__main__":
    main()
