"""What the control groups of this process leave it of the machine (cgroups(7), versions 1 and 2)."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")

# Version 1 says "no limit" with a number near 2^63.
_NO_LIMIT_BYTES = 1 << 60


def quota_cores(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Cores' worth of time that this process may use; None without a limit."""
    quotas = [quota for folder in _folders(root, own, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def memory_left_bytes(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Bytes until the nearest memory limit is reached; None without a limit."""
    left = [free for folder in _folders(root, own, "memory") if (free := _memory_left(folder)) is not None]
    return min(left, default=None)


def _folders(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """The group of this process and those above it: each may limit it. Inside a container the root is its own."""
    for line in (_read(own) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        folder = top / path.lstrip("/")
        yield folder
        yield from (above for above in folder.parents if above.is_relative_to(top))
    yield from (root, root / controller)


def _quota(folder: Path) -> float | None:
    text = _read(folder / "cpu.max")
    if text is None:
        text = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    quota, period = text.split()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory_left(folder: Path) -> int | None:
    limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or ""
    used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes") or ""
    if not (limit.isdigit() and used.isdigit()) or int(limit) >= _NO_LIMIT_BYTES:
        return None
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # no such controller, or not ours to read: it tells of no limit
        return None
