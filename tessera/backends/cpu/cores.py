"""Counts the cores that this process may use: those of its affinity, no more than the CPU quota of its control groups.

A container with `--cpus=2` on a machine of 64 cores may run on all of them, 2 at a time on average: more threads than
that would be stopped in the middle of a launch until the next period begins.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CPU = "cpu"  # the controller's name in cgroup v1


def usable_cores() -> int:
    """At least 1; a quota of a part of a core counts as a core."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, math.ceil(min(_own_quota(), cores))))


@functools.cache
def _own_quota() -> float:
    return cpu_quota(Path("/"))


def cpu_quota(root: Path) -> float:
    """Cores that the control groups of this process grant on average (infinity: no limit), the least of its group's and
    of those around it. `root` is the folder that has `proc` and what is mounted."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux, or /proc is not mounted
        return math.inf
    return min((_quota(folder) for folder in _folders(root, mounts, groups)), default=math.inf)


def _folders(root: Path, mounts: list[str], groups: list[str]) -> Iterator[Path]:
    """The folders of the groups that this process is in, of both versions, and of those around them."""
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
    """The folder of the group `path` below the mount point of the group `top`, and those up to the mount point. In a
    container `path` may be the host's, which is not mounted: the mount point is the group then."""
    inner = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()
    folder = point / inner
    yield folder
    while folder != point:
        folder = folder.parent
        yield folder


def _quota(folder: Path) -> float:
    """Cores that one group grants: `cpu.max` has the microseconds of a period, v1 a file for each number."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        granted, of = int(quota), int(period)
    except (OSError, ValueError):  # not there; "max"
        return math.inf
    return granted / of if granted > 0 and of > 0 else math.inf
