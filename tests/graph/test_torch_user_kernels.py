"""Kernels and operations of a program inside of compiled functions (user_kernel_cases.py holds those of kernels)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import tessera.language as tl  # noqa: E402
import tessera.torch  # noqa: E402  registers the backend
from tessera import graph  # noqa: E402

ROOT = Path(__file__).parents[2]
CASES = (
    "a_new_tensor_is_written", "a_value_is_written_in_place", "an_argument_is_written", "a_view_is_written_in_part",
    "one_kernel_with_several_constants", "an_operation_with_gradients", "an_operation_that_writes", "a_tuned_kernel",
    "a_tuned_kernel_with_options", "no_memory_is_copied_or_cleared", "descriptors",
)  # fmt: skip


def run_cases(**environment: str) -> dict[str, Any]:
    """The error of each case, None where there is none; in a process of their own, where tessera is Triton."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.graph.user_kernel_cases"], cwd=ROOT, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, timeout=300, check=False,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["case"] for row in rows] == list(CASES), done.stderr[-4000:]
    return {row["case"]: row["error"] for row in rows if row["error"]}


def test_kernels_are_part_of_graphs():
    assert run_cases() == {}


@pytest.mark.gpu
def test_kernels_are_part_of_graphs_on_a_gpu():
    assert run_cases(TEST_DEVICE="cuda") == {}


@tessera.jit
def doubling_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)


def doubled(x: Any) -> Any:
    out = torch.empty_like(x)
    doubling_kernel[(tessera.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_the_report_says_how_a_kernel_becomes_part_of_a_graph():
    report = graph.explain(lambda x: doubled(x + 1).exp(), torch.randn(40), measure=False)
    (why,) = report.graph_breaks
    assert "`import tessera.compat`" in why


def test_the_report_names_operations_of_the_program():
    @torch.library.custom_op("tessera_test::lowered_", mutates_args=("x",))
    def lowered(x: torch.Tensor, by: float) -> None:  # pyright: ignore[reportInvalidTypeForm]
        x.sub_(by)

    def f(x: Any) -> Any:
        y = x.sin()
        lowered(y, 1.0)
        return y

    report = graph.explain(f, torch.randn(5), measure=False)
    assert report.graphs[0].externs == [
        ("tessera_test.lowered_.default", "an operation of the program", 1)
    ]
