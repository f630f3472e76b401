"""Programs that take turns in one block: which kernels do, the precondition, results by interpreter and lane
simulator."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.backends.nvidia.simulator import run_kernel
from tessera.compiler import CompiledKernel
from tessera.interp import run
from tessera.ir import parse_module
from tessera.runtime.drivers.variants import fallback_of
from tests.unit.persist_kit import on_axes
from tests.unit.pointer_tma_kit import arguments, compiled, copies, passes, wrapped

ODD = ("M", "N", "K", "sam", "sbk", "sbn", "scm")


def large(how: str = "rem", b_order: str = "row", **more: Any) -> CompiledKernel:
    ones = {"sak": 1, "sbn" if b_order == "row" else "sbk": 1}
    constants = {"HOW": how, "MASK": True, "BM": 128, "BN": 256, "BK": 64, **ones}
    return compiled(wrapped, constants, **{"odd": ODD, "num_warps": 8, **more})


def axes(mode: str, **more: Any) -> CompiledKernel:
    constants = {"MODE": mode, "BM": 128, "BN": 256, "BK": 64}
    return compiled(on_axes, constants, pointers=("a", "b", "c", "bias"), num_warps=8, **more)  # type: ignore[arg-type]


def persistent(kernel: CompiledKernel) -> bool:
    names = [op.opcode for op in parse_module(kernel.asm["gir"]).walk()]
    found = hasattr(kernel.metadata, "resident_ctas")
    assert found == ("cta_id" in names) == ("descriptor_store" in names)
    return found


def grid_of(m: int, n: int) -> tuple[int, int, int]:
    return -(-m // 128) * -(-n // 256), 1, 1


def simulate(
    kernel: CompiledKernel, values: list[Any], grid: tuple[int, int, int], ctas: int
) -> None:
    meta: Any = kernel.metadata
    given = [v if isinstance(v, np.ndarray) else ("i64", v) for v in values]
    run_kernel(
        kernel.asm["llir"], kernel.name, given, 32 * meta.warps, meta.shared, grid, meta.tensor_maps,
        meta.host_code, ctas=ctas,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(200, 520, 136), (128, 256, 64), (129, 264, 1)])
@pytest.mark.parametrize("b_order", ["row", "column"])
def test_products(b_order: str, shape: tuple[int, int, int]) -> None:
    kernel = large("rem", b_order)
    assert persistent(kernel)
    m, n, k = shape
    values, c, want = arguments(m, n, k, b_order)
    assert passes(kernel, values, grid_of(m, n))
    run(parse_module(kernel.asm["gir"]), grid_of(m, n), values)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize(("ctas", "how"), [(1, "rem"), (4, "mask")])
def test_lowered_code(ctas: int, how: str) -> None:
    """One block runs all six programs, or four run one or two each."""
    kernel = large(how)
    values, c, want = arguments(200, 520, 72, "row")
    assert passes(kernel, values, (6, 1, 1))
    simulate(kernel, values, (6, 1, 1), ctas)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_axes_of_the_grid() -> None:
    kernel = axes("plain")
    assert persistent(kernel)
    rng = np.random.default_rng(0)
    m, n, k = 208, 528, 64
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    bias = rng.standard_normal(n).astype(np.float16)
    want = a.astype(np.float64) @ b.astype(np.float64) + bias + 3 + 20
    for how in ("interpreter", "simulator"):
        c = np.full((m, n), np.nan, np.float16)
        values: list[Any] = [a, b, c, bias, m, n, k, 0]
        assert passes(kernel, values, (3, 2, 1))
        if how == "interpreter":
            run(parse_module(kernel.asm["gir"]), (3, 2, 1), values)
        else:
            simulate(kernel, values, (3, 2, 1), 4)
        assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("mode", ["turned", "batch", "twice", "holes", "added", "maybe", "long"])
def test_programs_that_keep_a_block_each(mode: str) -> None:
    kernel = axes(mode)
    assert not persistent(kernel)
    assert copies(kernel) == 2
    assert "one program a CTA" in kernel.metadata.remarks[0]


@pytest.mark.parametrize(
    "options", [{"num_stages": 5}, {"persistent": False}, {"num_warps": 4, "BM": 64, "BN": 64}]
)
def test_without_room_or_need(options: dict[str, Any]) -> None:
    """No shared memory for the result; switched off; several CTAs share an SM anyway."""
    ctas = {n: options.pop(n) for n in ("BM", "BN") if n in options}
    constants = {
        "HOW": "rem",
        "MASK": True,
        "BM": 128,
        "BN": 256,
        "BK": 64,
        "sak": 1,
        "sbn": 1,
        **ctas,
    }
    kernel = compiled(wrapped, constants, odd=ODD, **{"num_warps": 8, **options})
    assert copies(kernel) == 2
    assert not persistent(kernel)


def test_a_result_that_no_map_describes() -> None:
    """Its rows are no multiples of 16 bytes: one program a CTA, whose loads still go through maps."""
    kernel = large()
    values = arguments(130, 260, 64, "row")[0]
    assert not passes(kernel, values, grid_of(130, 260))
    other = fallback_of(kernel)
    assert copies(other) == 2
    assert not persistent(other)
    assert passes(other, values, grid_of(130, 260))
    assert copies(fallback_of(other)) == 0


def test_a_result_whose_rows_end_within_16_bytes() -> None:
    """Its rows are far enough apart, but the TMA unit would store behind their ends."""
    kernel = large()
    for n, whole in ((264, True), (261, False)):
        values = arguments(130, n, 64, "row")[0]
        values[8] = 272
        assert passes(kernel, values, grid_of(130, n)) == whole
        assert passes(fallback_of(kernel), values, grid_of(130, n))


def test_programs_along_other_axes_than_those_that_count() -> None:
    kernel = large()
    values = arguments(128, 256, 64, "row")[0]
    assert passes(kernel, values, (1, 1, 1))
    assert not passes(kernel, values, (1, 2, 1))
    assert not passes(kernel, values, (1, 1, 2))
