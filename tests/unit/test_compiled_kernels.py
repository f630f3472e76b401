"""Launching one compiled kernel by itself: with all arguments, or without those of compile-time parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.compiler import CompiledKernel
from tessera.errors import LaunchError
from tessera.runtime.driver import driver


@tessera.jit
def scaled(x, out, n, BLOCK: tl.constexpr, factor, FLIP: tl.constexpr = False):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + i, i < n) * factor
    tl.store(out + i, -y if FLIP else y, i < n)


@tessera.jit
def from_tuple(x, sizes, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, sizes[0], i < sizes[1])


@pytest.fixture(params=["cpu", "interpreter"], autouse=True)
def on(request: pytest.FixtureRequest) -> Any:
    driver.set_active(request.param)
    yield request.param
    driver.reset_active()


@pytest.mark.parametrize(
    "factor", [3, 1]
)  # a 1 becomes a constant, but is no compile-time parameter
def test_arguments_of_compile_time_parameters_may_be_left_out(factor: int):
    x = np.arange(32, dtype=np.int32)
    out = np.zeros_like(x)
    kernel = scaled[(2,)](x, out, 32, 16, factor)
    forms = [(x, out, 32, 16, factor, False), (x, out, 32, factor)]
    if factor == 1:
        forms.append((x, out, 32))  # only what the binary takes
    for args in forms:
        out[:] = 0
        kernel[(2,)](*args)
        np.testing.assert_array_equal(out, x * factor)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 7])
def test_another_number_of_arguments_is_named(count: int):
    x = np.arange(32, dtype=np.int32)
    kernel = scaled[(2,)](x, x.copy(), 32, 16, 3)
    with pytest.raises(
        LaunchError, match=rf"takes 6 arguments, or 4 without .*got {count}"
    ) as caught:
        kernel[(2,)](*[x, x, 32, 16, 3, False, 0][:count])
    assert "x, out, n, BLOCK, factor, FLIP" in str(caught.value)


def test_tuples():
    x = np.zeros(16, np.int32)
    kernel = from_tuple[(1,)](x, (7, 5), BLOCK=16)
    for args in ((x, (7, 5), 16), (x, (7, 5))):
        x[:] = 0
        kernel[(1,)](*args)
        assert x.tolist() == [7] * 5 + [0] * 11
    with pytest.raises(LaunchError, match="takes 3 arguments, or 2"):
        kernel[(1,)](x)


def test_programs_may_replace_what_launches_and_what_loads(monkeypatch: pytest.MonkeyPatch):
    """Serving engines record launches by a `run` of their own, and redirect files by Triton's `__init__`."""
    x, out, seen = np.ones(8, np.float32), np.zeros(8, np.float32), list[Any]()
    run, init = tessera.JITFunction.run, CompiledKernel.__init__

    def recorded(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        seen.append((self, grid, warmup))
        return run(self, *args, grid=grid, warmup=warmup, **options)

    def redirected(self: Any, src: Any, metadata_group: Any, hash: str) -> None:
        seen.append([key for key in metadata_group if key.endswith(".json")])
        init(self, src, metadata_group, hash)

    with monkeypatch.context() as patch:
        patch.setattr(tessera.JITFunction, "run", recorded)
        patch.setattr(CompiledKernel, "__init__", redirected)
        kernel = tessera.jit(scaled.fn)
        made = kernel[(1,)](x, out, 8, 8, 3.0)
        kernel[(1,)](x, out, 8, 8, 5.0)
    assert seen == [(kernel, (1,), False), [], (kernel, (1,), False)]
    assert isinstance(made, CompiledKernel) and out.tolist() == [5] * 8
    kernel[(1,)](x, out, 8, 8, 7.0)
    assert len(seen) == 3 and out.tolist() == [7] * 8
