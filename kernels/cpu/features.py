"""What this processor can do, asked once: machines differ, and nothing is taken for granted at build time."""

import functools
import platform
from importlib.metadata import version
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's flags as Linux names them; none where Linux does not tell."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:  # not Linux
        return frozenset()
    flags = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, []))


def has_fast_bfloat16() -> bool:
    """Whether bfloat16 products run in hardware, and so faster than float32."""
    return bool(cpu_flags() & BF16_FLAGS)


def numerics() -> str:
    """Names what decides the bits of a result beside its input: kernels round by instruction set and library."""
    vectors = cpu_flags() & {"avx2", "avx512f", "asimd", "sve", *BF16_FLAGS}
    return " ".join(["cpu", platform.machine(), *sorted(vectors), f"torch={version('torch')}"])
