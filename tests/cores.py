"""Says how many processes and threads the tests may use on this machine."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY_OF_A_PROCESS = 3 << 29  # bytes; one process that runs all tests comes to 1.1 GiB
MOST_PROCESSES = 32  # each process collects all tests: more of them take longer than they save


def quota_of(text: str) -> float | None:
    """Cores that a control group grants by `cpu.max` ("200000 100000", "max 100000"); None where it sets no limit."""
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def control_group_quotas(groups: str, root: Path) -> list[float]:
    """The limits of the control groups listed in `groups` (the text of /proc/PID/cgroup), of both interface versions.

    Each level above a group may set a limit, too. A container may see its own group as `root`.
    """
    found: list[float | None] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        top, files = root, ["cpu.max"]
        if controllers:
            top, files = root / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        if not controllers or "cpu" in controllers.split(","):
            lowest = top / path.lstrip("/")
            levels = [level for level in (lowest, *lowest.parents) if level.is_relative_to(top)]
            found += [quota_of(" ".join(read(level / name) for name in files)) for level in levels]
    return [quota for quota in found if quota is not None]


def usable_cores() -> int:
    """Cores that this process may use: its affinity, limited by the quotas of its control groups; at least 1."""
    quotas = control_group_quotas(read(Path("/proc/self/cgroup")), Path("/sys/fs/cgroup"))
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def processes_for_tests() -> int:
    """How many processes the tests are spread over: one for each usable core, as far as memory goes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(usable_cores(), memory // MEMORY_OF_A_PROCESS, MOST_PROCESSES))


def threads_of_launches(processes: int) -> int:
    """Threads of a launch in one of `processes`: its share of the cores, but at least two, so that work is divided."""
    return max(2, usable_cores() // processes)


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
