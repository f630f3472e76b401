"""Knows the cores' architecture, and counts those that this process may use: those of its affinity, at most the CPU
quota of its control groups.

A container with `--cpus=2` on a machine of 64 cores may run on all of them, but only on 2 at a time on average: further
threads would be stopped in the middle of a launch until the next period begins.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

X86, ARM = platform.machine() == "x86_64", platform.machine() == "aarch64"
CPU = "cpu"  # the controller's name in cgroup v1


def usable_cores() -> int:
    """Return the number of cores, at least 1; a quota of a part of a core counts as a core."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, math.ceil(min(_own_quota(), cores))))


@functools.cache
def _own_quota() -> float:
    return cpu_quota(Path("/"))


def cpu_quota(root: Path) -> float:
    """Return the least number of cores that this process's control group or one of its ancestors grants on average
    (infinity: no limit). `root` is the folder that contains `proc` and the mount points."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux, or /proc is not mounted
        return math.inf
    return min((_quota(folder) for folder in _folders(root, mounts, groups)), default=math.inf)


def _folders(root: Path, mounts: list[str], groups: list[str]) -> Iterator[Path]:
    """Yield the folders of this process's groups, of both cgroup versions, and of their ancestors."""
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and CPU not in controllers.split(","):
            continue
        for mount in mounts:
            before, _, behind = mount.partition(" - ")
            kind, _, options = behind.split(" ", 2)
            ours = (
                kind == "cgroup" and CPU in options.split(",") if controllers else kind == "cgroup2"
            )
            if ours:
                top, point = before.split(" ")[3:5]
                at = root / point.lstrip("/")
                yield from _around(at, PurePosixPath(path), PurePosixPath(top))


def _around(point: Path, path: PurePosixPath, top: PurePosixPath) -> Iterator[Path]:
    """Yield the folder of the group `path` below the mount point of the group `top`, and its parents up to the mount
    point. In a container `path` may be the host's, which is not mounted: then the mount point is the group."""
    inner = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()
    folder = point / inner
    yield folder
    while folder != point:
        folder = folder.parent
        yield folder


def _quota(folder: Path) -> float:
    """Return the cores that one group grants: `cpu.max` has quota and period in microseconds, v1 a file for each."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        granted, of = int(quota), int(period)
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return math.inf
    return granted / of if granted > 0 and of > 0 else math.inf
