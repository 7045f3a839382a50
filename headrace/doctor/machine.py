"""The machine: processor, cores, memory, disk."""

import asyncio
import os
import platform
import shutil
from pathlib import Path

from headrace.doctor import cgroup
from headrace.doctor.base import Check, Finding, failed, ok, warning
from headrace.doctor.situation import Situation
from kernels.cpu.features import cpu_flags

CPU, CORES, MEMORY, DATA, CACHE = "CPU", "cores", "memory", "disk (data)", "disk (cache)"
NAMES = (CPU, CORES, MEMORY, DATA, CACHE)

FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
MEMINFO = Path("/proc/meminfo")
GIB = 1 << 30
MIB = 1 << 20

# Broker, gate, pipeline and worker share them: with one they wait for each other.
_MIN_CORES = 2
# A broker's process beside its heap, the S3 server, and gate, pipeline and worker with the small model without its KV:
# rounded up.
_BROKER_MIB, _S3_MIB, _ROLES_MIB = 100, 200, 1500
# Below the first nothing can be kept, below the second not for long: a week of records and sessions.
_DATA_BYTES = (GIB // 2, 5 * GIB)
# Kafka's jars and its class archive take 120 MB.
_CACHE_BYTES = (GIB // 5, GIB)
_MEMORY_REMEDY = "end other programs, or lower engine.kv_bytes and local.kafka_heap_mb"


def checks(situation: Situation) -> list[Check]:
    """All checks of this file."""
    return [
        Check(CPU, lambda: asyncio.to_thread(cpu), "use another machine for the worker"),
        Check(CORES, lambda: asyncio.to_thread(cores), "raise the container's CPU limit"),
        Check(MEMORY, lambda: asyncio.to_thread(memory, situation), _MEMORY_REMEDY),
        Check(
            DATA,
            lambda: asyncio.to_thread(disk, DATA, situation.data_dir, _DATA_BYTES, "local.data_dir"),
            "set local.data_dir to a folder on another disk",
        ),
        Check(
            CACHE,
            lambda: asyncio.to_thread(disk, CACHE, situation.cache_dir, _CACHE_BYTES, "local.cache_dir"),
            "set local.cache_dir to a folder on another disk",
        ),
    ]


def cpu(flags: frozenset[str] | None = None, machine: str | None = None) -> Finding:
    """Which of the instructions that the engine's arithmetic profits from are there."""
    flags, machine = cpu_flags() if flags is None else flags, machine or platform.machine()
    present = [name for name in FEATURES if name in flags]
    if machine != "x86_64":
        return ok(CPU, f"{machine}; AVX and AMX are x86_64's, so they do not apply")
    if "avx2" not in flags:
        return warning(CPU, f"{machine} without avx2: the engine will be slow", "run the worker on a newer processor")
    missing = [name for name in FEATURES if name not in flags]
    return ok(CPU, f"{machine} with {', '.join(present)}" + (f"; without {', '.join(missing)}" if missing else ""))


def cores() -> Finding:
    """Cores that this process may use: the machine's, its affinity, its control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.quota_cores()
    usable = allowed if quota is None else min(allowed, quota)
    found = f"{usable:g} usable of {os.cpu_count()} (affinity {allowed}, " + (
        "no quota)" if quota is None else f"quota {quota:g})"
    )
    if usable < _MIN_CORES:
        return warning(
            CORES,
            f"{found}: broker, pipeline and worker wait for each other",
            f"give it {_MIN_CORES} cores or more, or run the worker on a machine of its own",
        )
    return ok(CORES, found)


def memory(situation: Situation) -> Finding:
    """Memory that is free for the roles, and for Kafka and S3 where they would be started here."""
    free = memory_free_bytes()
    if free is None:
        return warning(MEMORY, "this system does not tell how much is free", _MEMORY_REMEDY)
    found = f"{free / GIB:.1f} GiB free"
    if situation.is_local_broker:
        return ok(MEMORY, f"{found} beside the local stack that runs")
    needed = memory_needed_bytes(situation)
    if free < needed:
        return warning(MEMORY, f"{found}, and all of headrace needs about {needed / GIB:.1f} GiB", _MEMORY_REMEDY)
    return ok(MEMORY, f"{found}; all of headrace needs about {needed / GIB:.1f} GiB")


def memory_needed_bytes(situation: Situation) -> int:
    """What all roles on this machine need, with the settings as they are."""
    settings = situation.settings
    stack_mib = settings.local.kafka_heap_mb + _BROKER_MIB + _S3_MIB if situation.needs_local_stack else 0
    return settings.engine.kv_bytes + (_ROLES_MIB + stack_mib) * MIB


def memory_free_bytes(meminfo: Path = MEMINFO) -> int | None:
    """The least of what the machine has free and what the control group leaves (proc_meminfo(5), MemAvailable)."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    except OSError:  # not Linux
        return None
    available, left = lines.get("MemAvailable"), cgroup.memory_left_bytes()
    candidates = [left] if left is not None else []
    if available is not None:
        candidates.append(int(available.split()[0]) * 1024)
    return min(candidates, default=None)


def disk(name: str, folder: Path, thresholds: tuple[int, int], setting: str) -> Finding:
    """Whether a folder, which need not exist yet, can be written and has room. `thresholds`: bytes to fail, to warn."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    remedy = f"set {setting} to a folder with room that you may write"
    if not existing.is_dir():
        return failed(name, f"{folder}: {existing} is no folder", remedy)
    if not os.access(existing, os.W_OK | os.X_OK):
        return failed(name, f"{folder}: {existing} may not be written", remedy)
    free = shutil.disk_usage(existing).free
    found = f"{free / GIB:.1f} GiB free in {folder}"
    if free < thresholds[0]:
        return failed(name, found, f"free {thresholds[1] / GIB:g} GiB, or {remedy}")
    if free < thresholds[1]:
        return warning(name, found, f"free {thresholds[1] / GIB:g} GiB, or {remedy}")
    return ok(name, found)
