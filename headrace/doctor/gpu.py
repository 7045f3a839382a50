"""The GPU and its driver, as nvidia-smi tells them. None is no fault: the engine then runs on the CPU."""

import asyncio
import shutil

from headrace.doctor.base import Check, Finding, ok, warning
from headrace.doctor.commands import Answer, ask

GPU = "GPU"
NAMES = (GPU,)

# torch 2.11 is built with CUDA 13, which needs this driver series (CUDA 13 release notes, minor version compatibility).
MIN_DRIVER = 580
_QUERY = ("--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader,nounits")
_REMEDY = f"install NVIDIA's driver {MIN_DRIVER} or newer, and see that `nvidia-smi` works; without it the CPU is used"


def checks() -> list[Check]:
    """All checks of this file."""
    return [Check(GPU, gpu, _REMEDY)]


async def gpu() -> Finding:
    """Ask nvidia-smi, if it is there."""
    executable = await asyncio.to_thread(shutil.which, "nvidia-smi")
    if executable is None:
        return ok(GPU, "no NVIDIA driver here: the engine runs on the CPU")
    return judge(await ask(executable, *_QUERY))


def judge(answer: Answer) -> Finding:
    """What nvidia-smi's answer means: one line of comma-separated values a GPU."""
    if answer.returncode != 0:
        return warning(GPU, f"nvidia-smi fails: {answer.first_line}", _REMEDY)
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.text.splitlines() if line.strip()]
    if not rows or any(len(row) != 4 for row in rows):
        return warning(GPU, f"nvidia-smi names no GPU: {answer.first_line or 'it says nothing'}", _REMEDY)
    found = "; ".join(f"{name} ({memory} MiB, compute {compute})" for name, _, memory, compute in rows)
    driver = rows[0][1]
    major = driver.partition(".")[0]
    if not major.isdigit() or int(major) < MIN_DRIVER:
        return warning(GPU, f"{found}; driver {driver} is older than CUDA 13 needs", _REMEDY)
    return ok(GPU, f"{found}; driver {driver}")
