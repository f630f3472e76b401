"""How many processes the tests are spread over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import cores


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("200000 100000", 2), ("50000 100000\n", 0.5), ("max 100000", None), ("-1 100000", None),
        ("", None), ("100000 0", None), ("\n100000", None),
    ],
)  # fmt: skip
def test_quotas(text: str, quota: float | None):
    assert cores.quota_of(text) == quota


def test_each_level_of_control_groups_limits(tmp_path: Path):
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000")
    (tmp_path / "job" / "cpu.max").write_text("300000 100000")
    assert cores.control_group_quotas("0::/job/step\n", tmp_path) == [3]
    assert cores.control_group_quotas("0::/seen/from/outside\n", tmp_path) == []
    (tmp_path / "cpu.max").write_text("200000 100000")
    assert cores.control_group_quotas("0::/seen/from/outside\n", tmp_path) == [2]


def test_control_groups_of_version_1(tmp_path: Path):
    group = tmp_path / "cpu" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("150000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    text = "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n"
    assert cores.control_group_quotas(text, tmp_path) == [1.5]


def test_processes_and_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    assert 1 <= cores.processes_for_tests() <= len(os.sched_getaffinity(0))
    monkeypatch.setattr(cores, "usable_cores", lambda: 64)
    assert [cores.threads_of_launches(n) for n in (1, 8, 32, 64)] == [64, 8, 2, 2]
