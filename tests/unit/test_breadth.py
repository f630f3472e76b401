"""What benchmarks/breadth.py is made of, as far as it needs neither torch nor a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"""
import os, sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "benchmarks")!r}]
from generated import pool

def answer(task):
    print("this goes nowhere")
    if task == "sleep":
        time.sleep(60)
    if task == "end":
        os._exit(3)
    if task == "fail":
        raise ValueError("no good")
    return {{"of": task}}

pool.serve(answer)
"""


@pytest.fixture
def generated(monkeypatch):
    monkeypatch.setenv("TESSERA_STRICT", "1")  # benchmarks set it for good when they are imported
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from generated import kernel, pool, summary

    return kernel, pool, summary


def test_a_task_that_hangs_or_ends_its_process_does_not_stop_the_others(generated, tmp_path):
    _, pool, _ = generated
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    workers = pool.Pool([sys.executable, str(program)], 1, 3, first=57)
    for task in ("a", "end", "b", "fail", "sleep", "c"):
        workers.submit(task)
    answers = dict(workers.answers.get(timeout=300) for _ in range(6))
    workers.stop()
    for thread in workers.threads:
        thread.join()
    assert [answers[t] for t in "abc"] == [{"of": t} for t in "abc"]
    assert answers["end"] == {"error": "its process ended: 3"}
    assert "no good" in answers["fail"]["error"]
    assert answers["sleep"]["error"].startswith("longer than")


def kernel_of(kernel, name: str, constant: int):
    text = f"@triton.jit\ndef {name}(a, n, XBLOCK: tl.constexpr):\n    tl.store(a, {constant})\n"
    config = kernel.Config({"XBLOCK": 64}, 4, 1, [2, 1, 1])
    return kernel.Kernel(
        name, text, {"a": "*fp32", "n": "i32", "XBLOCK": "constexpr"}, {}, [[[0], [["tt.divisibility", 16]]]],
        {"debug": True}, [config], [["float32", [128], [1]], 128], 4.8e-3, sources=["relu training float32"],
    )  # fmt: skip


def test_kernels_come_back_from_their_file(generated, tmp_path):
    kernel, _, _ = generated
    kernels = [kernel_of(kernel, "f", 1), kernel_of(kernel, "g", 2)]
    kernel.write(tmp_path / "file.xz", kernels, {"helpers": "text"})
    assert kernel.read(tmp_path / "file.xz") == (kernels, {"helpers": "text"})
    assert kernels[0].key == kernel_of(kernel, "another", 1).key != kernels[1].key


def test_a_row_is_of_the_fastest_configurations(generated, tmp_path, capsys):
    kernel, _, summary = generated
    made = kernel_of(kernel, "f", 1)
    other = kernel_of(kernel, "g", 2)
    made.configs.append(kernel.Config({"XBLOCK": 128}, 8, 1, [1, 1, 1]))
    results = tmp_path / "results.jsonl"
    found = (
        '{"times": {"tessera": [2.0, 1.25], "triton": [1.0, 3.0]}, "apart": 0.5, "device": "NVIDIA H200", "resources": '
        '{"tessera": [[10, 0], [12, 8]], "triton": [[20, 0], [22, 0]]}, "seconds": {"tessera": 0.1, "triton": 0.4}, '
    )
    lines = [f'{found}"key": "{made.key}"}}', f'{{"key": "{other.key}", "error": "tessera: no"}}']
    results.write_text("\n".join(lines))
    rows, facts = summary.rows_of([made, other], results)
    (row,) = rows
    assert row.times == {"tessera": 1.25, "triton": 1.0}
    assert row.ratios == {"triton": 0.8}
    assert row.rates["tessera"] == pytest.approx(3840.0)
    assert facts.errors == [("relu training float32", "tessera: no")]
    text = summary.summary(rows, facts)
    assert "1 kernels, geomean 0.800" in text
    assert "geomean 0.250" in text
    assert "1 differ" in text
    assert "12r+8/20r" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("grid", "launches"),
    [
        ([1, 65535, 1], True),
        ([1, 131072, 1], False),
        ([131072, 1, 1], True),
        ([1, 0, 1], False),
        ([1, 1, 65536], False),
    ],
)
def test_a_grid_that_no_gpu_launches_is_told(generated, grid, launches):
    reason = generated[0].Config({}, 4, 3, grid).unlaunchable()
    assert (reason is None) == launches
    assert launches or str(tuple(grid)) in reason


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ('tl.device_assert((0 <= tmp4) & (tmp4 < 64), "no")', [64]),
        (
            "tl.device_assert((0 <= tl.broadcast_to(tmp64, [XBLOCK])) & (tl.broadcast_to(tmp64, [XBLOCK]) < 4))",
            [4],
        ),
        ('tl.device_assert(tmp5, "values must be non-negative")', []),
    ],
)
def test_the_bounds_of_asserted_indices_are_found(generated, text, bound):
    kernel = generated[0]
    assert [
        int(b) for line in kernel.ASSERTION.findall(text) for b in kernel.BOUND.findall(line)
    ] == bound
    given = kernel_of(kernel, "k", 1)
    assert not given.asserted
    given.text, given.options = text, {"debug": True}
    assert given.asserted
