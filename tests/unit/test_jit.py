"""Launches: binding, order of steps, keys, grids, hooks, the native path and its ways back to Python."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import json
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import (
    CompilationError,
    HostPointerError,
    LaunchError,
    NotAFunction,
    UnknownOption,
)
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.specialize import specialize
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import CpuDriver, CudaDriver
from tessera.runtime.launching.async_compile import AsyncCompileMode, FutureKernel


@pytest.fixture(autouse=True)
def clean(tmp_path: Any):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        knobs.runtime.default_backend = "cpu"
        yield


def make(**options: Any) -> Any:
    """A fresh kernel: out[i] = x[i] * a + b over n elements, CHUNK a program."""

    @tessera.jit(**options)
    def scale(x, out, n, a, b=0.0, CHUNK: tl.constexpr = 8, FLAG: tl.constexpr = None):
        i = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
        v = tl.load(x + i, i < n) * a + b
        if FLAG is not None:
            v = v + 100
        tl.store(out + i, v, i < n)

    return scale


def arrays(n: int = 20) -> tuple[Any, Any]:
    return np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


def kernels_of(kernel: Any) -> list[Any]:
    return [k for caches in kernel.device_caches.values() for k in caches[0].values()]


class Counter:
    """Counts the launches that reach the complete Python path."""

    def __init__(self, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        complete = kernel._launch

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return complete(*args, **kwargs)

        monkeypatch.setattr(kernel, "_launch", counted)


# --- binding ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("repeat", [1, 3])
def test_ways_to_pass_arguments(repeat: int):
    kernel = make()
    x, out = arrays()
    for _ in range(repeat):  # the second time natively
        for call in (
            lambda: kernel[(3,)](x, out, 20, 2.0, 1.0, 8, None),
            lambda: kernel[(3,)](x, out, 20, 2.0, b=1.0),
            lambda: kernel[(3,)](x, out, a=2.0, n=20, b=1.0, CHUNK=8),
            lambda: kernel[(3,)](out=out, x=x, b=1.0, FLAG=None, n=20, a=2.0),
            lambda: kernel.run(x, out, 20, 2.0, b=1.0, grid=(3,), warmup=False),
            lambda: kernel[(3,)](x, out, 20, 2.0, b=1.0, num_warps=8),
            lambda: kernel[(3,)](x, out, 20, 2.0, num_stages=1, b=1.0, num_warps=2, CHUNK=8),
        ):
            out[:] = 0
            assert call() is not None
            np.testing.assert_array_equal(out, x * 2 + 1)


@pytest.mark.parametrize("rounds", [1, 2])
def test_wrong_arguments(rounds: int):
    kernel = make()
    x, out = arrays()
    kernel[(3,)](x, out, 20, 2.0)
    for _ in range(rounds):
        with pytest.raises(
            TypeError, match=r"scale\(\) missing 1 required positional argument: 'a'"
        ):
            kernel[(3,)](x, out, 20)
        with pytest.raises(TypeError, match=r"scale\(\) got multiple values for argument 'n'"):
            kernel[(3,)](x, out, 20, 2.0, n=3)
        with pytest.raises(TypeError, match=r"scale\(\) takes from 4 to 7 positional arguments"):
            kernel[(3,)](x, out, 20, 2.0, 0.0, 8, None, 5)
        with pytest.raises(
            KeyError, match="Keyword argument num_wraps was specified but unrecognised"
        ) as unknown:
            kernel[(3,)](x, out, 20, 2.0, num_wraps=4)
        assert "help: did you mean `num_warps`?" in str(unknown.value)
        with pytest.raises(UnknownOption, match="did you mean `CHUNK`"):
            kernel[(3,)](x, out, 20, 2.0, CHUNKS=8)
        with pytest.raises(TypeError, match="failed to specialize argument of type: str") as text:
            kernel[(3,)](x, "out", 20, 2.0)
        assert "note: it is the argument `out` of scale" in str(text.value)
        for name in ("device", "device_type", "stream"):
            with pytest.raises(AssertionError, match=f"{name} option is deprecated"):
                kernel[(3,)](x, out, 20, 2.0, **{name: 0})
        with pytest.raises(LaunchError, match="num_warps must be a power of 2"):
            kernel[(3,)](x, out, 20, 2.0, num_warps=3)


def test_names_made_at_run_time():
    """Keyword names that are equal, but not the same objects, bind all the same."""
    kernel = make()
    x, out = arrays()
    for _ in range(3):
        name = "".join(["CH", "UNK"])
        assert name is not sys.intern("CHUNK")
        kernel[(5,)](x, out, 20, 2.0, **{name: 4})
        np.testing.assert_array_equal(out, x * 2)
    assert len(kernels_of(kernel)) == 1


# --- keys -----------------------------------------------------------------------------------------------------------
def test_what_makes_another_kernel():
    kernel = make()
    x, out = arrays()
    seen = []
    for arguments, options in (
        ((x, out, 20, 2.0), {}), ((x, out, 16, 2.0), {}), ((x, out, 1, 2.0), {}), ((x, out, 2**40, 2.0), {}),
        ((x.astype(np.float64), out, 20, 2.0), {}), ((x, out, 20, 3), {}), ((x, out, 20, True), {}),
        ((x[1:], out, 19, 2.0), {}), ((x, out, 20, 2.0), {"CHUNK": 4}), ((x, out, 20, 2.0), {"num_warps": 8}),
        ((x, out, 20, 2.0), {"FLAG": 1}), ((x, out, 20, 2.0), {"FLAG": True}), ((x, out, 20, 2.0), {"FLAG": 1.0}),
    ):  # fmt: skip
        first = kernel[(1,)](*arguments, **options)
        assert kernel[(1,)](*arguments, **options) is first
        assert kernel[(1,)](*arguments, **options) is first
        assert first not in seen
        seen.append(first)


def test_what_makes_no_other_kernel():
    kernel = make()
    x, out = arrays()
    first = kernel[(3,)](x, out, 20, 2.0)
    assert kernel[(2, 2)](x, out, 24 - 2, -7.5) is first
    assert kernel[(3,)](x.copy(), out, 18, float("nan"), b=1e30) is first
    assert len(kernels_of(kernel)) == 1


class Forth(NamedTuple):
    first: int
    second: int


class Back(NamedTuple):
    second: int
    first: int


@dataclasses.dataclass(frozen=True)
class Box:
    inner: Any


def test_equal_arguments_that_mean_other_kernels():
    """Equal and of equal hash, but not the same compile-time values, nor the same fields."""

    @tessera.jit
    def told(out, x, V: tl.constexpr):
        tl.store(out, x.first * 10 + x.second)
        tl.store(out + 1, 1.0 if isinstance(V, float) else 2.0)

    @tessera.jit
    def held(out, V: tl.constexpr):
        tl.store(out, 1.0 if isinstance(V[0], float) else 2.0)

    @tessera.jit
    def boxed(out, V: tl.constexpr):
        tl.store(out, 1.0 if isinstance(V.inner, float) else 2.0)

    @tessera.jit
    def stored(out, V: tl.constexpr):
        tl.store(out, V)

    out = np.zeros(2, np.float32)
    for _ in range(3):
        for x in (Forth(2, 3), Back(first=2, second=3)):
            for v, want in ((1, 2), (1.0, 1), (True, 2)):
                told[(1,)](out, x, v)
                assert out.tolist() == [23, want]
        for kernel, kind in ((held, lambda v: (v, 2)), (held, lambda v: [v]), (boxed, Box)):
            for v, want in ((1, 2), (1.0, 1), (True, 2)):
                kernel[(1,)](out, kind(v))
                assert out[0] == want
        for zero in (0.0, -0.0):
            stored[(1,)](out, zero)
            assert np.signbit(out[0]) == np.signbit(zero)
        for _ in range(2):
            stored[(1,)](out, float("nan"))
    assert len(kernels_of(stored)) == 3
    assert len(kernels_of(told)) == 6


def test_do_not_specialize():
    kernel = make(do_not_specialize=["n", 3])
    x, out = arrays()
    first = kernel[(3,)](x, out, 1, 1)
    assert kernel[(3,)](x, out, 16, 2) is first
    assert kernel[(3,)](x, out, 17, 48) is first
    np.testing.assert_array_equal(out[:17], x[:17] * 48)
    loose = make(do_not_specialize_on_alignment=["n"])
    first = loose[(3,)](x, out, 16, 2.0)
    assert loose[(3,)](x, out, 17, 2.0) is first
    assert loose[(3,)](x, out, 1, 2.0) is not first


def test_constexpr_in_the_wrong_list():
    with pytest.raises(
        CompilationError, match="CHUNK marked as constexpr and listed in do_not_specialize"
    ):
        make(do_not_specialize=["CHUNK"])[(1,)](*arrays(), 20, 2.0)


def test_parameters_without_names():
    @tessera.jit
    def loose(x, **rest):
        tl.store(x, 1)

    with pytest.raises(CompilationError, match=r"the parameter `\*\*rest` is not supported"):
        loose[(1,)](np.zeros(1, np.int32))


def test_unhashable_constexprs():
    @tessera.jit
    def kernel(out, SHAPE: tl.constexpr):
        tl.store(out, SHAPE[0])

    out = np.zeros(1, np.int32)
    for shape in ([3], [4], [3]):
        kernel[(1,)](out, shape)
        assert out[0] == shape[0]
    mutable = [5]
    for value in (5, 6, 7):
        mutable[0] = value
        kernel[(1,)](out, mutable)
        assert out[0] == value


def test_annotated_parameters():
    @tessera.jit
    def kernel(out, a: tl.int64, b: tl.uint8, c: tl.float16, d: bool, p: "*fp32"):  # noqa: F722
        tl.store(out, a)
        tl.store(out + 1, b)
        tl.store(out + 2, (c * 1024).to(tl.int64))
        tl.store(out + 3, d)
        tl.store(out + 4, tl.load(p).to(tl.int64))

    out, p = np.zeros(5, np.int64), np.full(1, 9, np.float32)
    for _ in range(3):
        for a, b, c, d, want in (
            (1, 1, 0.5, True, [1, 1, 512, 1, 9]),
            (2**40, 255, 1.0, False, [2**40, 255, 1024, 0, 9]),
            (16, 16, 2, 1, [16, 16, 2048, 1, 9]),
        ):
            for pointer in (p, p.ctypes.data):
                out[:] = 0
                kernel[(1,)](out, a, b, c, d, pointer)  # pyright: ignore[reportArgumentType]
                assert out.tolist() == want
        with pytest.raises(OverflowError):
            kernel[(1,)](out, 1, 256, 0.5, True, p)


def test_tuples_and_descriptors():
    @tessera.jit
    def kernel(pair, out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(pair[0] + i) * pair[1])

    @tessera.jit
    def copy(source, out, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        i, j = tl.arange(0, ROWS), tl.arange(0, BLOCK)
        tl.store(out + i[:, None] * BLOCK + j[None, :], source.load([0, 0]))

    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    for factor in (1, 2, 3.5, 2):
        kernel[(1,)]((x, factor), out, BLOCK=16)
        np.testing.assert_array_equal(out, x * factor)
    x, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    for base in (x, x + 1, x * 2):
        copy[(1,)](
            TensorDescriptor(base.reshape(4, 64), [4, 64], [64, 1], [4, 64]), out, ROWS=4, BLOCK=64
        )
        np.testing.assert_array_equal(out, base)


# --- grids ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("times", [1, 3])
def test_grids(times: int):
    kernel = make()
    x, out = arrays()

    def by_names(meta: dict[str, Any]) -> tuple[int]:
        assert list(meta) == ["x", "out", "n", "a", "b", "CHUNK", "FLAG"]
        assert meta["x"] is x
        assert meta["b"] == 0.0
        return (tessera.cdiv(meta["n"], meta["CHUNK"]),)

    for _ in range(times):
        for grid in (
            (3,),
            [3],
            (3, 1),
            (1, 1, 1),
            (np.int64(3),),
            by_names,
            lambda meta: [3, 1, 1],
        ):
            out[:] = 0
            kernel[grid](x, out, 20, 2.0)
            done = 20 if grid != (1, 1, 1) else 8
            np.testing.assert_array_equal(out[:done], 2 * x[:done])
            assert not out[done:].any()


@pytest.mark.parametrize("times", [1, 3])
def test_empty_grids_launch_nothing(times: int):
    kernel = make()
    x, out = arrays()
    for _ in range(times):
        for grid in ((0,), (3, 0), (3, 1, 0), lambda meta: (0,)):
            assert kernel[grid](x, out, 20, 2.0) is not None
        assert not out.any()
        kernel[(1,)](x[:0], out[:0], 0, 2.0)


@pytest.mark.parametrize("times", [1, 3])
def test_bad_grids(times: int):
    kernel = make()
    x, out = arrays()
    for _ in range(times):
        with pytest.raises(LaunchError, match="negative"):
            kernel[(-1,)](x, out, 20, 2.0)
        with pytest.raises(LaunchError, match="empty"):
            kernel[()](x, out, 20, 2.0)
        with pytest.raises(ZeroDivisionError):
            kernel[lambda meta: (1 // 0,)](x, out, 20, 2.0)
        with pytest.raises(LaunchError, match="no integer: 'a'"):
            kernel[("a",)](x, out, 20, 2.0)
        for grid in (5, None):
            with pytest.raises(LaunchError, match=f"the grid {grid} is no sequence"):
                kernel[grid](x, out, 20, 2.0)
        with pytest.raises(LaunchError, match=r"the grid \(3, 1, 1, 1\) has 4 extents"):
            kernel[(3, 1, 1, 1)](x, out, 20, 2.0)
        with pytest.raises(LaunchError, match="2147483648 programs along y; the cpu driver starts"):
            kernel[(1, 2**31)](x, out, 20, 2.0)
        with pytest.raises(LaunchError, match="programs along x"):
            kernel[(2**64,)](x, out, 20, 2.0)
        compiled = kernel[(3,)](x, out, 20, 2.0)
        with pytest.raises(LaunchError, match="is no sequence"):
            compiled[3]
        with pytest.raises(LaunchError, match="no integer"):
            compiled[(1.5, 1, 1)]


@pytest.mark.parametrize("times", [1, 3])
def test_limits_of_the_grid_are_the_drivers(times: int, monkeypatch: pytest.MonkeyPatch):
    kernel = make()
    x, out = arrays(8)
    kernel[(1, 65536)](x, out, 8, 2.0)
    monkeypatch.setattr(CpuDriver, "grid_limits", CudaDriver.grid_limits)
    for _ in range(times):
        kernel[(1, 65535)](x, out, 8, 2.0)
        kernel[(0, 65536)](x, out, 8, 2.0)
        for grid, axis in (((1, 65536), "y"), ((1, 1, 65536), "z"), (lambda meta: [1, 70000], "y")):
            with pytest.raises(LaunchError, match=f"along {axis}; the cpu driver .* at most 65535"):
                kernel[grid](x, out, 8, 2.0)


# --- hooks and order ------------------------------------------------------------------------------------------------
def test_order_of_a_launch():
    kernel = make()
    x, out = arrays()
    events: list[str] = []
    kernel.add_pre_run_hook(
        lambda *args, **kwargs: events.append(f"pre {kwargs['debug']} {len(args)}")
    )
    knobs.runtime.jit_cache_hook = lambda **about: events.append("cache") and False
    knobs.runtime.jit_post_compile_hook = lambda **about: events.append("post")
    knobs.runtime.launch_enter_hook.add(lambda data: events.append(f"enter {data.get()['name']}"))
    knobs.runtime.launch_exit_hook.add(lambda data: events.append("exit"))

    def grid(meta: Any) -> tuple[int]:
        events.append("grid")
        return (3,)

    kernel[grid](x, out, 20, 2.0)
    assert events == ["pre False 4", "cache", "post", "grid", "enter scale", "exit"]
    events.clear()
    kernel[grid](x, out, 20, 2.0)
    assert events == ["pre False 4", "grid", "enter scale", "exit"]


def test_launches_with_hooks_stay_native(monkeypatch: pytest.MonkeyPatch):
    kernel = make()
    kernel.launch_metadata = lambda grid, metadata, args: {"grid": grid, "args": args}
    x, out = arrays()
    counter, seen, failing = Counter(kernel, monkeypatch), [], []

    def entered(metadata: Any) -> None:
        about = metadata.get()
        assert about["args"]["x"] is x
        assert about["args"]["CHUNK"] == 8
        seen.append((about["name"], about["grid"], about["stream"], out.any()))
        if "enter" in failing:
            raise ValueError("entered")

    def left(metadata: Any) -> None:
        seen.append(("left", metadata.get()["grid"], out.any()))
        if "leave" in failing:
            raise ValueError("left")

    def launch() -> None:
        out[:] = 0
        kernel[lambda meta: (3, 1)](x, out, 20, 2.0)

    knobs.runtime.launch_enter_hook.add(entered)
    knobs.runtime.launch_exit_hook.add(left)
    for _ in range(4):
        launch()
    before, after = ("scale", (3, 1, 1), 0, False), ("left", (3, 1, 1), True)
    assert seen == [before, after] * 4
    assert counter.calls == 1
    kernel[(0,)](x, out, 20, 2.0)
    assert len(seen) == 8
    watched = (x, out, kernel, None, entered, left)
    gc.collect()
    references = [sys.getrefcount(a) for a in watched]
    for way, message, written in (("enter", "entered", False), ("leave", "left", True)):
        failing[:] = [way]
        for _ in range(50):
            with pytest.raises(ValueError, match=message):
                launch()
            assert out.any() == written
    failing.clear()
    for _ in range(50):
        launch()
    found = [sys.getrefcount(a) for a in watched]
    assert all(abs(b - a) < 40 for a, b in zip(references, found, strict=True))
    assert counter.calls == 1


def test_hooks_added_after_native_launches(monkeypatch: pytest.MonkeyPatch):
    kernel = make()
    x, out = arrays()
    counter = Counter(kernel, monkeypatch)
    for _ in range(4):
        kernel[(3,)](x, out, 20, 2.0)
    assert counter.calls == 1
    events: list[Any] = []
    knobs.runtime.launch_enter_hook.add(events.append)
    for _ in range(3):
        kernel[(3,)](x, out, 20, 2.0)
    assert len(events) == 3
    knobs.runtime.launch_enter_hook.remove(events.append)
    before = counter.calls
    for _ in range(4):
        kernel[(3,)](x, out, 20, 2.0)
    assert counter.calls == before + 1
    assert len(events) == 3
    kernel.add_pre_run_hook(lambda *args, **kwargs: events.append(args))
    kernel[(3,)](x, out, 20, 2.0)
    kernel.pre_run_hooks.clear()
    kernel[(3,)](x, out, 20, 2.0)
    assert len(events) == 4


def test_cache_hook():
    kernel = make()
    x, out = arrays()
    seen: list[dict[str, Any]] = []

    def veto(**about: Any) -> bool:
        seen.append(about)
        return True

    knobs.runtime.jit_cache_hook = veto
    assert kernel[(3,)](x, out, 20, 2.0) is None
    assert kernel.warmup(x, out, 20, 2.0, grid=(1,)) is None
    assert not out.any()
    assert [s["is_manual_warmup"] for s in seen] == [False, True]
    about = seen[0]
    assert set(about) == {"key", "repr", "fn", "compile", "is_manual_warmup", "already_compiled"}
    assert about["fn"].jit_function is kernel
    assert about["fn"].name.endswith("scale")
    compile_facts = about["compile"]
    assert compile_facts["signature"]["x"] == "*fp32"
    assert compile_facts["num_warps"] == 4
    assert {"device", "constants", "specialization_data", "is_warmup", "extern_libs"} <= set(
        compile_facts
    )


def test_launch_metadata():
    kernel = make(
        launch_metadata=lambda grid, metadata, args: {
            "flops": args["n"] * grid[0],
            "warps": metadata.num_warps,
        }
    )
    x, out = arrays()
    seen: list[dict[str, Any]] = []
    knobs.runtime.launch_enter_hook.add(lambda data: seen.append(data.get()))
    kernel[(3,)](x, out, 20, 2.0)
    assert seen[0]["flops"] == 60
    assert seen[0]["warps"] == 4
    assert {"name", "function", "stream"} <= set(seen[0])


def test_debug_reaches_the_options(monkeypatch: pytest.MonkeyPatch):
    kernel = make()
    x, out = arrays()
    plain = kernel[(3,)](x, out, 20, 2.0)
    assert not plain.metadata.debug
    knobs.runtime.debug = True
    assert kernel[(3,)](x, out, 20, 2.0).metadata.debug
    knobs.runtime.debug = False
    assert kernel[(3,)](x, out, 20, 2.0) is plain
    assert make(debug=True)[(3,)](x, out, 20, 2.0).metadata.debug


# --- compile-time globals ------------------------------------------------------------------------------------------
FACTOR = tl.constexpr(3)


@tessera.jit
def uses_global(out):
    tl.store(out, FACTOR)


def test_changed_globals(monkeypatch: pytest.MonkeyPatch):
    out = np.zeros(1, np.int32)
    for _ in range(3):
        uses_global[(1,)](out)
        assert out[0] == 3
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(4))
    for _ in range(2):
        with pytest.raises(
            LaunchError, match="Global variable FACTOR has changed since we compiled this kernel"
        ):
            uses_global[(1,)](out)


# --- warm-up, preload, background ---------------------------------------------------------------------------------
def test_warmup():
    kernel = make()
    x, out = arrays()
    compiled = kernel.warmup(x, out, 20, 2.0, grid=(3,))
    assert not out.any()
    assert kernel[(3,)](x, out, 20, 2.0) is compiled
    assert kernel.warmup(
        tessera.MockTensor(tl.float32), tessera.MockTensor(tl.float16), 20, 2.0, grid=(1,)
    ).asm["tir"]


def test_the_run_of_one_kernel_replaced():
    kernel, other = make(), make()
    x, out = arrays()
    grids: list[Any] = []
    run = kernel.run

    def recorded(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        grids.append((grid, warmup))
        return run(*args, grid=grid, warmup=warmup, **kwargs)

    kernel.run = recorded
    for step in (2.0, 3.0):
        kernel[(3,)](x, out, 20, step)
        np.testing.assert_array_equal(out, step * x)
    other[(3,)](x, out, 20, 2.0)
    assert grids == [((3,), False)] * 2
    del kernel.run
    kernel[(3,)](x, out, 20, 2.0)
    assert len(grids) == 2


@pytest.mark.skipif(cuda.available(), reason="an index is a CUDA device's")
def test_caches_by_the_index_of_a_device():
    kernel = make()
    kernel.warmup(*arrays(), 20, 2.0, grid=(1,))
    assert list(kernel.device_caches[0][0].values()) == kernels_of(kernel)


def test_preload():
    kernel, again, other = make(), make(), uses_global
    x, out = arrays()
    data: list[str] = []
    knobs.runtime.jit_cache_hook = lambda **about: (
        data.append(about["compile"]["specialization_data"]) and False
    )
    kernel[(3,)](x, out, 20, 2.0, CHUNK=4, num_warps=2)
    knobs.runtime.jit_cache_hook = None
    assert json.loads(data[0])["options"] == {"num_warps": 2}
    loaded = again.preload(data[0])
    assert again[(5,)](x, out, 20, 2.0, CHUNK=4, num_warps=2) is loaded
    with pytest.raises(LaunchError, match="Specialization data is for"):
        other.preload(data[0])
    with pytest.raises(LaunchError, match="Specialization data is for"):
        again.preload(data[0].replace('"cpu"', '"cuda"'))


def test_background_compilation():
    kernel = make()
    x, out = arrays()
    with ThreadPoolExecutor(2) as pool, AsyncCompileMode(pool):
        futures = [kernel.warmup(x, out, 20, 2.0, CHUNK=c, grid=(1,)) for c in (4, 8, 16, 4)]
        assert all(isinstance(f, FutureKernel) for f in futures)
        assert futures[0] is futures[3]
        with pytest.raises(RuntimeError, match="already active"), AsyncCompileMode(pool):
            pass
    assert futures[1].result().name == "scale"
    assert futures[1].metadata.name == "scale"
    kernel[(5,)](x, out, 20, 2.0, CHUNK=4)
    np.testing.assert_array_equal(out, 2 * x)
    assert len(kernels_of(kernel)) == 3


def test_launch_in_the_background_mode_waits():
    kernel = make()
    x, out = arrays()
    with ThreadPoolExecutor(1) as pool, AsyncCompileMode(pool):
        kernel[(3,)](x, out, 20, 2.0)
        np.testing.assert_array_equal(out, 2 * x)


def test_errors_in_the_background():
    @tessera.jit
    def broken(x):
        tl.store(x, undefined_name)  # noqa: F821

    x = np.zeros(1, np.float32)
    with (
        pytest.raises(tessera.CompilationError, match="undefined_name"),
        ThreadPoolExecutor(1) as pool,
        AsyncCompileMode(pool),
    ):
        broken.warmup(x, grid=(1,))
    with ThreadPoolExecutor(1) as pool, AsyncCompileMode(pool, ignore_errors=True):
        broken.warmup(x, grid=(1,))


# --- the native path -------------------------------------------------------------------------------------------------
def test_repeated_launches_stay_native(monkeypatch: pytest.MonkeyPatch):
    kernel = make()
    counter = Counter(kernel, monkeypatch)
    x, out = arrays()
    for step in range(10):
        kernel[(3,)](x, out, 18, float(step), CHUNK=8, num_warps=4)
        np.testing.assert_array_equal(out[:18], step * x[:18])
    assert counter.calls == 1
    kernel.device_caches.clear()
    kernel[(3,)](x, out, 18, 2.0, CHUNK=8, num_warps=4)
    assert counter.calls == 2
    for cache in kernel.device_caches.values():
        cache[0].clear()
    kernel[(3,)](x, out, 18, 2.0, CHUNK=8, num_warps=4)
    assert counter.calls == 3
    knobs.runtime.num_threads = 1
    for _ in range(3):
        kernel[(3,)](x, out, 18, 2.0, CHUNK=8, num_warps=4)
    assert counter.calls == 4


def test_views_of_wide_storage():
    """An offset into a view may need 64 bits because of the array behind it."""
    kernel = make()
    big = np.empty(1 << 31, np.int8)  # never touched: no memory
    x, out = np.ones(32, np.int8), np.zeros(32, np.int8)
    first = kernel[(4,)](x, out, 32, 2)
    for _ in range(3):
        assert kernel[(4,)](x, out, 32, 2) is first
        assert kernel[(4,)](big[:32], out, 32, 2) is not first
        assert kernel[(4,)](big[:64].view(np.uint8).view(np.int8)[:32], out, 32, 2) is not first
    assert "W" in specialize(big[:32])[1]


def test_many_specialisations():
    kernel = make()
    x, out = arrays(64)
    for _ in range(2):
        for flag in range(300):
            for chunk in (8, 16):
                if flag % 50 == 0:
                    out[:] = 0
                    kernel[(8,)](x, out, 64, 2.0, CHUNK=chunk, FLAG=flag)
                    np.testing.assert_array_equal(out, 2 * x + 100)


def test_arrays_are_not_kept():
    kernel = make()
    x, out = arrays()

    class Tracked(np.ndarray):
        pass

    for kind in (np.ndarray, Tracked):
        y = x.copy().view(kind)
        gone = weakref.ref(y)
        for _ in range(3):
            kernel[(3,)](y, out, 20, 2.0)
        del y
        gc.collect()
        assert gone() is None


def test_kernels_are_freed():
    kernel = make()
    x, out = arrays()
    for _ in range(3):
        kernel[(3,)](x, out, 20, 2.0)
    bound = kernel[(3,)]
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    bound(x, out, 20, 3.0)  # holds all that it needs
    np.testing.assert_array_equal(out, 3 * x)
    del bound
    gc.collect()
    assert gone() is None


def test_references_are_balanced():
    kernel = make()
    x, out = arrays()
    grid, option = (3,), 123456789
    kernel[grid](x, out, 20, 2.0, CHUNK=8, FLAG=option)
    objects = [x, out, x.dtype, grid, kernel[grid](x, out, 20, 2.0, CHUNK=8, FLAG=option), kernel]
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        kernel[grid](x, out, 20, 2.0, CHUNK=8, FLAG=option)
        kernel[lambda meta: (3,)](x, out, 20, 2.0, CHUNK=8, FLAG=option)
    after = [sys.getrefcount(o) for o in objects]
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 20


def test_threads():
    kernel = make()
    errors: list[BaseException] = []

    def work(factor: int) -> None:
        x, out = arrays()
        try:
            for _ in range(200):
                kernel[lambda meta: (3,)](x, out, 20, float(factor), CHUNK=8)
                np.testing.assert_array_equal(out, factor * x)
                if factor == 3:
                    knobs.runtime.launch_exit_hook.calls.clear()
                    kernel.forget_fast_path()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_failed_assertions_are_raised_each_time():
    @tessera.jit
    def check(x, n):
        tl.device_assert(n < 10, "too large")
        tl.store(x, n)

    x = np.zeros(1, np.int32)
    for _ in range(3):
        check[(1,)](x, 5, debug=True)
        with pytest.raises(tessera.TesseraError, match="too large"):
            check[(1,)](x, 50 + 2, debug=True)
        with pytest.raises(tessera.TesseraError, match="too large"):
            check[(1,)](x, 15, debug=True)


def test_memory_outside_numpy():
    class Duck:
        def __init__(self, array: Any) -> None:
            self.array, self.dtype, self.is_cuda = array, array.dtype, False

        def data_ptr(self) -> int:
            return self.array.ctypes.data

    kernel = make()
    x, out = arrays()
    for _ in range(3):
        kernel[(3,)](Duck(x), Duck(out), 20, 2.0)
        np.testing.assert_array_equal(out, 2 * x)
    view = tessera.reinterpret(np.zeros(20, np.uint16), tl.bfloat16)
    for _ in range(3):
        kernel[(3,)](x, view, 20, 1.0)
    np.testing.assert_array_equal(view.base, (x.view(np.uint32) >> 16).astype(np.uint16))


def test_dlpack():
    class Foreign:
        """An array of a library that has nothing but DLPack."""

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    with pytest.raises(HostPointerError, match="Foreign"):
        CudaDriver.address(object.__new__(CudaDriver), Foreign(np.zeros(1, np.float32)))
    kernel = make()
    for kind in (np.float32, np.float64, np.float16):
        x, out = (y.astype(kind) for y in arrays())
        for _ in range(3):
            kernel[(3,)](Foreign(x), Foreign(out[2:]), 18, 2.0)
            np.testing.assert_array_equal(out[2:], 2 * x[:18])
    assert specialize(Foreign(np.zeros(4, np.bool_)))[0] == "*u1"
    with pytest.raises(TypeError):
        kernel[(3,)](Foreign(np.zeros(20, np.complex64)), out, 20, 2.0)


def test_arrays_of_other_byte_order():
    kernel = make()
    x, out = arrays()
    kernel[(3,)](x, out, 20, 2.0)
    with pytest.raises(TypeError):
        kernel[(3,)](x.astype(">f4"), out, 20, 2.0)


def test_host_array_on_a_gpu_driver():
    with pytest.raises(HostPointerError, match="cannot be accessed"):
        CudaDriver.address(object.__new__(CudaDriver), np.zeros(1, np.float32))


def test_host_calls_are_refused():
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        make()(1, 2, 3, 4)


# --- kernels as values ----------------------------------------------------------------------------------------------
@tessera.jit
def named(x, out, n, CHUNK: tl.constexpr):
    i = tl.arange(0, CHUNK)
    tl.store(out + i, tl.load(x + i, i < n) + 1, i < n)


def test_pickles_by_name():
    assert pickle.loads(pickle.dumps(named)) is named
    assert copy.deepcopy(named) is copy.copy(named) is named


def test_pickles_by_value():
    kernel = make()
    x, out = arrays()
    kernel[(3,)](x, out, 20, 2.0)
    other = pickle.loads(pickle.dumps(kernel))
    assert repr(other) == repr(kernel)
    assert (other.src, other.arg_names, other.cache_key) == (
        kernel.src,
        kernel.arg_names,
        kernel.cache_key,
    )
    out[:] = 0
    other[(3,)](x, out, 20, 2.0)  # from the disk
    np.testing.assert_array_equal(out, 2 * x)
    with pytest.raises(LaunchError, match="scale was pickled without what it captures"):
        other[(3,)](x, out, 20, 2.0, CHUNK=16)


@pytest.mark.parametrize("thing", [len, int, functools.partial(print), make(), object()])
def test_only_functions_are_kernels(thing: Any):
    with pytest.raises(NotAFunction, match="@jit needs a Python function, got "):
        tessera.jit(thing)


def test_options_of_the_wrong_type():
    x, out = arrays()
    for options in ({"num_warps": "4"}, {"num_stages": 2.0}, {"maxnreg": [1]}):
        with pytest.raises(LaunchError, match="must be an integer"):
            make()[(3,)](x, out, 20, 2.0, **options)
    with pytest.raises(LaunchError, match="did you mean `num_warps`"):
        make()[(3,)](x, out, 20, 2.0, num_warp=4)
    with pytest.raises(
        LaunchError, match="ir_override names 5, which cannot be read: it is no path"
    ):
        make()[(3,)](x, out, 20, 2.0, ir_override=5)


def test_tools_that_take_kernels_apart():
    """What a cache hook hears, and what programs that compile ahead of time read off a kernel."""
    kernel = make()
    heard: list[dict[str, Any]] = []
    x, out = arrays()
    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = lambda **facts: heard.append(facts)
        kernel[(3,)](x, out, 20, 2.0)
    assert heard[0]["fn"].module == __name__
    assert heard[0]["fn"].name == "make.<locals>.scale"
    src = kernel.ASTSource(
        kernel, {"x": "*fp32", "out": "*fp32", "n": "i32", "a": "fp32", "b": "fp32", "CHUNK": "constexpr",
        "FLAG": "constexpr"}, {"CHUNK": 8, "FLAG": None},
    )  # fmt: skip
    assert isinstance(kernel.compile(src), kernel.CompiledKernel)


def test_a_parameter_named_as_an_option_is_the_option_as_well():
    @tessera.jit
    def stages(out, num_stages: tl.constexpr, num_warps: tl.constexpr = 1):
        tl.store(out, num_stages + 10 * num_warps)

    out = np.zeros(1, np.int32)
    for _ in range(2):  # the second launch is native
        about = stages[(1,)](out, num_stages=tl.constexpr(5), num_warps=2).metadata
        assert (out[0], about.num_stages, about.num_warps) == (25, 5, 2)
    about = stages[(1,)](out, 6).metadata  # by position, or by default, it is the parameter alone
    assert (out[0], about.num_stages, about.num_warps) == (16, 3, 4)
    tuned = tessera.autotune([tessera.Config({}, num_stages=2)], key=[])(stages)
    assert (tuned[(1,)](out).metadata.num_stages, out[0]) == (2, 42)


def test_errors_of_a_call_are_of_one_line():
    x, out = arrays()
    with pytest.raises(
        TypeError, match=r"^[\w.]+\(\) got multiple values for keyword argument 'b'$"
    ):
        make()[(3,)](x, out, 20, 2.0, **{"b": 1.0}, **{"b": 2.0})
