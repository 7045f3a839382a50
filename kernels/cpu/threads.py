"""How many threads torch uses inside one operation, in one place: the setting belongs to the calling thread."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

CGROUP_V2_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_threads() -> int:
    """Threads that torch uses now in this thread's operations."""
    return torch.get_num_threads()


def set_num_threads(count: int) -> None:
    """Set them for the calling thread, and for threads that use torch for the first time after this."""
    torch.set_num_threads(count)


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set them for a while."""
    before = num_threads()
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)


def available_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its container if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota_cores() or cores))


def _quota_cores() -> int | None:
    try:
        quota, period = CGROUP_V2_QUOTA.read_text().split()
    except (OSError, ValueError):  # no such control group here: no limit
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
