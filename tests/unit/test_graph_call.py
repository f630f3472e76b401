"""The call of a compiled graph: one function of native code for all kernels between two calls of the array library."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32, float64, int64
from tessera.errors import DeviceAssertionError, LaunchError
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.calls.sequence import LaunchSequence, SequenceStep, alignment_check
from tessera.graph.index import parse_map, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place
from tessera.runtime.cuda.abi import LaunchConfig, launch_config
from tessera.runtime.native.fast_path import Start
from tests.unit.graph_kit import by_python, check, compiled, fp32, module_of

RNG = np.random.default_rng(0)
CUDA_STUB = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(LaunchConfig), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)  # fmt: skip
CPU_STUB = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_int] * 3, ctypes.c_int64
)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def row_sums(g: GraphBuilder, x: Any, n: Any, m: Any) -> Any:
    return g.loop([n], lambda i: g.reduce("sum", [m], lambda r: g.load(x, i, r)))


def chain(g: GraphBuilder, x: Any, n: Any, m: Any, length: int) -> Any:
    """Kernels that follow each other: what none of them can be without another's result."""
    for _ in range(length):
        s = row_sums(g, x, n, m)
        x = g.loop([n, m], lambda i, j, x=x, s=s: g.sub(g.load(x, i, j), g.load(s, i)))
    return x


# --- one call ---------------------------------------------------------------------------------------------------------
def test_kernels_that_follow_each_other_are_one_call():
    exe = check(lambda g: chain(g, g.input("x", fp32(9, 12)), 9, 12, 4), [numbers(9, 12)])
    assert exe.source.count("launch_0(") == 1
    assert "launch_1(" not in exe.source
    assert exe.source.count(" programs (") == len(exe.plan.steps) == 8
    assert "launch_" not in by_python(exe).source


def test_calls_of_the_library_stand_between_calls_of_native_code():
    def build(g: GraphBuilder) -> Any:
        n = sym("s0")
        x = g.input("x", fp32(n, 6))
        y = chain(g, x, n, 6, 2)
        (z,) = g.extern("negated", [y], [Place(0)], [fp32(n, 6)])
        return chain(g, z, n, 6, 2)

    host = NumpyHost({"negated": lambda x: -x})
    exe = compile_graph(module_of(build), host)
    assert exe.source.count("failed = launch_") == 2
    for n in (5, 1, 70):
        x = numbers(n, 6)
        (got,) = exe([x])
        (same,) = by_python(exe)([x])
        np.testing.assert_array_equal(got, same)


def test_the_host_makes_its_device_current_around_the_call():
    class Watching(NumpyHost):
        def on_device(self, call: Any) -> Any:
            return lambda inputs: [*call(inputs), "guarded"]

    g = GraphBuilder("exp")
    x = g.input("x", fp32(3))
    g.output(g.loop([3], lambda i: g.exp(g.load(x, i))))
    exe = compile_graph(g.finish(), Watching())
    for run in (exe, exe.call):
        found, mark = run([np.zeros(3, np.float32)])
        assert mark == "guarded" and (found == 1).all()


def test_what_nobody_needs_any_more_is_let_go():
    alive: list[bool] = []
    x = numbers(5, 6)
    seen = weakref.ref(x)

    def negated(y: Any) -> Any:
        alive.append(seen() is not None)
        return -y

    def build(g: GraphBuilder) -> Any:
        y = chain(g, g.input("x", fp32(5, 6)), 5, 6, 1)
        for _ in range(2):
            (y,) = g.extern("negated", [y], [Place(0)], [fp32(5, 6)])
        return y

    exe = compile_graph(module_of(build), NumpyHost({"negated": negated}))
    given = [x]
    del x
    exe(given)
    assert alive == [False, False]
    at = [
        exe.source.index(x) for x in ("strided(", "launch_0(", "del x_", "extern_0_", "extern_1_")
    ]
    assert at == sorted(at)


def test_scalars_and_sizes_reach_kernels():
    def build(g: GraphBuilder) -> Any:
        n = sym("s0")
        g.input("s0", int64, symbol="s0")
        k = g.input("k", int64)
        f = g.input("f", float32)
        x = g.input("x", fp32(n, 3))
        scaled = g.loop([n, 3], lambda i, j: g.mul(g.load(x, i, j), f))
        return g.loop([n], lambda i: g.add(g.load(scaled, i, 0), g.cast(k, float32)))

    x = numbers(4, 3)
    exe = compiled(module_of(build))
    for call in (exe, by_python(exe)):
        (got,) = call([4, -7, 0.5, x])
        np.testing.assert_allclose(got, x[:, 0] * 0.5 - 7, rtol=1e-6)


def test_a_double_scales_an_argument_in_place():
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(6))
        k = g.input("k", float64)
        g.write(x, g.loop([6], lambda i: g.mul(g.load(x, i), g.cast(k, float32))))
        return g.loop([6], lambda i: g.sub(g.load(x, i), g.load(x, i)))

    x = numbers(6)
    for call in (exe := compiled(module_of(build)), by_python(exe)):
        given = x.copy()
        (got,) = call([given, 1 / 3])
        np.testing.assert_array_equal(given, x * np.float32(1 / 3))
        np.testing.assert_array_equal(got, 0 * x)


@pytest.mark.parametrize("n", [0, 1, 33])
def test_grids_may_be_empty(n: int):
    check(lambda g: chain(g, g.input("x", fp32(sym("s0"), 4)), sym("s0"), 4, 2), [numbers(n, 4)])


@pytest.mark.parametrize("start", [1, 4])
def test_arrays_may_begin_anywhere(start: int):
    x = np.zeros(256 + start, np.uint8)[start:].view(np.float32).reshape(8, 8)
    x[...] = numbers(8, 8)
    exe = check(lambda g: chain(g, g.input("x", fp32(8, 8)), 8, 8, 1), [x])
    (a,), (b,) = exe([x]), exe([x.copy()])
    np.testing.assert_array_equal(a, b)


def test_more_kernels_than_one_sequence_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tessera.graph.planning.plan.MOST_LAUNCHES", 3)
    exe = check(lambda g: chain(g, g.input("x", fp32(9, 12)), 9, 12, 4), [numbers(9, 12)])
    assert exe.source.count("failed = launch_") == 3


def test_arrays_of_types_that_native_code_does_not_know():
    class Other(np.ndarray):
        pass

    x = numbers(8, 8)
    exe = compiled(module_of(lambda g: chain(g, g.input("x", fp32(8, 8)), 8, 8, 1)))
    np.testing.assert_array_equal(exe([x.view(Other)])[0], exe([x])[0])
    with pytest.raises(AttributeError):
        exe([object()])


# --- written arguments ------------------------------------------------------------------------------------------------
def test_two_arguments_may_be_exchanged():
    def build(g: GraphBuilder) -> Any:
        a, b, c = (g.input(name, fp32(8, 8)) for name in "abc")
        g.write(a, b)
        g.write(b, c)
        g.write(c, a)
        return g.loop([8], lambda i: g.load(a, i, i))

    xs = [numbers(8, 8) for _ in range(3)]
    a, b, c = (x.copy() for x in xs)
    (diagonal,) = compiled(module_of(build))(list(xs))
    for got, want in zip(xs, (b, c, a), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(diagonal, np.diagonal(a))


def test_an_argument_may_get_its_own_elements_in_another_order():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(40, 40))
        g.write(a, g.view(a, parse_map("(d0, d1) -> (d1, d0)"), fp32(40, 40)))
        return g.loop([1], lambda i: g.load(a, i, i))

    x = numbers(40, 40)
    before = x.copy()
    compiled(module_of(build))([x])
    np.testing.assert_array_equal(x, before.T)


# --- threads, interrupts ----------------------------------------------------------------------------------------------
def test_threads_may_call_one_graph():
    n = sym("s0")
    exe = compiled(module_of(lambda g: chain(g, g.input("x", fp32(n, 16)), n, 16, 3)))
    failed: list[Any] = []

    def work(rows: int) -> None:
        x = numbers(rows, 16)
        (want,) = exe([x])
        for _ in range(100):
            (got,) = exe([x])
            if not np.array_equal(got, want):
                failed.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (3, 64, 300)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def waves(g: GraphBuilder) -> Any:
    """As long as one likes, and no memory."""
    n = sym("s0")
    g.input("s0", int64, symbol="s0")

    def wave(r: Any) -> Any:
        return g.unary("sin", g.cast(r, float32))

    return g.loop([1], lambda i: g.reduce("sum", [n], wave))


def test_ctrl_c_ends_a_graph():
    exe = compiled(module_of(waves))
    (want,) = exe([10])
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            exe([(1 << 31) - (1 << 21)])
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, handler)
    np.testing.assert_array_equal(exe([10])[0], want)


def test_sizes_that_do_not_fit_are_an_error():
    with pytest.raises(LaunchError, match="s0 is 1099511627776"):
        compiled(module_of(waves))([1 << 40])


# --- the sequence itself ----------------------------------------------------------------------------------------------
class FakeDriver:
    """Starts kernels by a function of the test."""

    def __init__(self, name: str, entry: Any, config: int = 0, maps: Any = None):
        self.name, self.config, self.maps = name, config, maps
        self.entry = ctypes.cast(entry, ctypes.c_void_p).value or 0

    def get_current_device(self) -> int:
        return 0

    def native_start(self, kernel: Any, device: int) -> Start:
        return Start(
            cuda=self.name == "cuda", entry=self.entry, function=kernel.function, config=self.config, pool=0,
            stream=None, device=device, fail=print, maps=self.maps,
        )  # fmt: skip


def fake_kernel(function: int, backend: str, launched: list[Any] | None = None) -> Any:
    metadata = SimpleNamespace(target=SimpleNamespace(backend=backend), assertions=["x > 0"])

    def launcher(*args: Any) -> None:
        assert launched is not None
        launched.append(args)

    return SimpleNamespace(function=function, metadata=metadata, name="k", launcher=launcher)


def table(*values: int) -> bytes:
    return bytes((ctypes.c_int64 * len(values))(*values))


def test_a_failing_check_of_a_kernel_is_an_error_and_ends_the_sequence():
    seen: list[int] = []

    def stub(pool: int, fn: int, slots: int, x: int, y: int, z: int, scratch: int) -> int:
        seen.append(fn)
        return 1 if fn == 7 else 0

    native = CPU_STUB(stub)
    steps = [SequenceStep(fake_kernel(fn, "cpu"), 1, ()) for fn in (6, 7, 8)]
    run = LaunchSequence(steps, [], NumpyHost(), FakeDriver("cpu", native))  # type: ignore[arg-type]
    result = run.launch(0, table(0, 1))
    assert seen == [6, 7]
    with pytest.raises(DeviceAssertionError, match=r"assertion failed in k: x > 0"):
        run.failed(result, 0, table(0, 1))


def test_gpu_launches_get_grid_stream_and_arguments():
    seen: list[Any] = []

    def stub(config: Any, function: int, places: Any, extra: int) -> int:
        values = [ctypes.c_int64.from_address(places[i]).value for i in range(3)]
        c = config.contents
        seen.append((function, list(c.grid)[:1], c.stream, values))
        return 0

    native = CUDA_STUB(stub)
    template = launch_config(threads=64)
    x, y = np.zeros(4), np.zeros(4)
    steps = [
        SequenceStep(fake_kernel(5, "cuda"), 1, ((1, 0), (2, 2), (0, 3))),
        SequenceStep(fake_kernel(6, "cuda"), 0, ((1, 0), (2, 0), (0, 0))),  # an empty grid
        SequenceStep(fake_kernel(7, "cuda"), 3, ((2, 0), (1, 3), (3, 0))),
    ]
    driver: Any = FakeDriver("cuda", native, template.address)
    run = LaunchSequence(steps, ["ptr", "ptr", "i64"], NumpyHost(), driver)
    assert run.launch(99, table(0, 30, 256, 12), x, y, -3) == 0
    at, there = x.ctypes.data, y.ctypes.data
    assert seen == [
        (5, [30], 99, [at, there + 256, 12]),
        (7, [12], 99, [there, at + 12, -3]),
    ]
    with pytest.raises(TypeError, match="takes 5 arguments"):
        run.launch(99, table(0))


def test_what_native_code_does_not_start_goes_by_the_launchers():
    launched: list[Any] = []
    native = CUDA_STUB(lambda config, function, places, extra: 201 if function == 6 else 0)
    steps = [
        SequenceStep(fake_kernel(fn, "cuda", launched), 1, ((1, 2), (0, 1), (2, 0)))
        for fn in (5, 6, 7)
    ]
    driver: Any = FakeDriver("cuda", native, launch_config(threads=64).address)
    run = LaunchSequence(steps, ["ptr", "fp32"], NumpyHost(), driver)
    x = np.zeros(4)
    given = (99, table(0, 30, 256), x, 0.5)
    run.failed(run.launch(*given), *given)
    assert launched == [(30, 1, 1, 99, x.ctypes.data + 256, 30, 0.5)] * 2  # the second and third


def test_alignment_of_arrays():
    aligned = alignment_check(NumpyHost())
    memory = np.zeros(64, np.uint8)
    start = -memory.ctypes.data % 16
    good, bad = memory[start : start + 16], memory[start + 4 : start + 20]
    assert aligned() and aligned(good) and aligned(good, good)
    assert not aligned(good, bad) and not aligned(bad)
