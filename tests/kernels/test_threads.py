"""Threads and processor features come from where this process really runs."""

import os
from pathlib import Path

import pytest

from kernels.cpu import features, threads


def test_the_setting_lasts_as_long_as_the_block() -> None:
    before = threads.num_threads()
    with threads.using_threads(before + 1):
        assert threads.num_threads() == before + 1
    assert threads.num_threads() == before


@pytest.mark.parametrize(("text", "expected"), [("max 100000", None), ("150000 100000", 1), ("50000 100000", 1)])
def test_cores_are_limited_by_the_containers_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int | None
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text + "\n")
    monkeypatch.setattr(threads, "CGROUP_V2_QUOTA", quota)
    assert threads.available_cores() == (expected or len(os.sched_getaffinity(0)))


def test_without_a_quota_all_cores_of_the_affinity_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CGROUP_V2_QUOTA", tmp_path / "missing")
    assert threads.available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("flags", "expected"), [("fpu avx512_bf16", True), ("fpu amx_bf16 amx_int8", True), ("fpu avx2", False)]
)
def test_bfloat16_is_fast_where_the_processor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, *, expected: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    monkeypatch.setattr(features, "CPUINFO", cpuinfo)
    features.cpu_flags.cache_clear()
    assert features.has_fast_bfloat16() is expected
    features.cpu_flags.cache_clear()
