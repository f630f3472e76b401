"""How many cores a process may use, by files like those of Linux."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tessera.backends.cpu import cores, pool
from tessera.config import knobs

V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
OTHER = "36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset"


def machine(root: Path, groups: str, mounts: list[str], **files: str) -> Path:
    """A folder with the files of a process; those of /sys/fs/cgroup by path, `__` for a slash, `_` for a dot first."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    for name, text in files.items():
        at = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_", "cpu.", 1)
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
    return root


def test_quota_of_version_2(tmp_path: Path):
    root = machine(tmp_path, "0::/\n", [V2], cpu_max="150000 100000\n")
    assert cores.cpu_quota(root) == 1.5


def test_no_quota(tmp_path: Path):
    assert cores.cpu_quota(tmp_path / "none") == math.inf
    root = machine(tmp_path, "0::/\n", [V2], cpu_max="max 100000\n")
    assert cores.cpu_quota(root) == math.inf


def test_the_least_quota_of_the_groups_around_counts(tmp_path: Path):
    files = {"a__cpu_max": "300000 100000\n", "a__b__cpu_max": "max 100000\n"}
    root = machine(tmp_path, "0::/a/b\n", [V2], **files)
    assert cores.cpu_quota(root) == 3


@pytest.mark.parametrize(("quota", "expected"), [("50000", 0.5), ("-1", math.inf)])
def test_quota_of_version_1(tmp_path: Path, quota: str, expected: float):
    at = tmp_path / "sys/fs/cgroup/cpu,cpuacct/job"
    at.mkdir(parents=True)
    (at / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (at / "cpu.cfs_period_us").write_text("100000\n")
    root = machine(tmp_path, "5:cpuset:/\n4:cpu,cpuacct:/job\n0::/\n", [OTHER, V1])
    assert cores.cpu_quota(root) == expected


def test_a_group_of_the_host_is_mounted_at_the_top(tmp_path: Path):
    """Without a namespace of its own a container sees the host's path, and its own group where it is mounted."""
    mount = V2.replace(" / /sys", " /docker/abc /sys")
    root = machine(tmp_path / "x", "0::/docker/abc\n", [mount], cpu_max="200000 100000\n")
    assert cores.cpu_quota(root) == 2
    root = machine(tmp_path / "y", "0::/docker/abc\n", [V2], cpu_max="200000 100000\n")
    assert cores.cpu_quota(root) == 2


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.5, 2), (math.inf, 4), (100, 4)])
def test_threads_honour_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float, expected: int
):
    monkeypatch.setattr(
        knobs.runtime, "num_threads", None
    )  # tests that run side by side have a number
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(cores, "_own_quota", lambda: quota)
    assert pool.default_threads() == expected
    monkeypatch.setattr(knobs.runtime, "num_threads", 7)
    assert pool.default_threads() == 7
