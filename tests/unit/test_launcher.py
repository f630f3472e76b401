"""The native launcher: packing of every kind, errors, both targets, the Python lock, reference counts."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
from typing import Any

import numpy as np
import pytest

from tessera.backends.cpu.pool import get_pool
from tessera.backends.llvm.binding import host, link_object, optimise
from tessera.errors import HostPointerError, InternalError
from tessera.runtime.cuda.driver_api import LaunchConfig, launch_config
from tessera.runtime.native.launcher import bind_launcher, make_launcher

CUDA_STUB = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(LaunchConfig),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
CHECK_STUB = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int, ctypes.c_uint64
)
CPU_STUB = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
)


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Tensor:
    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer

    def data_ptr(self) -> Any:
        if isinstance(self.pointer, Exception):
            raise self.pointer
        return self.pointer


def pack(kind: str, value: Any, size: int = 8) -> bytes:
    """What a CPU kernel finds in the slot of one argument."""
    seen: list[bytes] = []

    def stub(pool: int, fn: int, slots: int, x: int, y: int, z: int, scratch: int) -> int:
        seen.append(ctypes.string_at(slots, size))
        return 0

    native = CPU_STUB(stub)
    assert bind_launcher((kind,), "cpu", address(native), 0)(1, 1, 1, 0, 0, 0, value) == 0
    return seen[0]


@pytest.mark.parametrize(
    ("kind", "value", "layout"),
    [
        ("i8", -128, "<b"), ("i8", 127, "<b"), ("u8", 255, "<B"), ("i16", -32768, "<h"), ("u16", 65535, "<H"),
        ("i32", -(2**31), "<i"), ("i32", 2**31 - 1, "<i"), ("i32", -1, "<i"), ("u32", 2**32 - 1, "<I"),
        ("i64", -(2**63), "<q"), ("i64", -1, "<q"), ("u64", 2**64 - 1, "<Q"), ("u64", 7, "<Q"),
        ("fp32", 1.1, "<f"), ("fp32", -1.0, "<f"), ("fp64", 1.1, "<d"), ("f64", -1, "<d"), ("fp16", 0.1, "<e"),
        ("fp16", 65504.0, "<e"), ("fp32", float("inf"), "<f"),
    ],
)  # fmt: skip
def test_numbers(kind: str, value: Any, layout: str):
    assert pack(kind, value, struct.calcsize(layout)) == struct.pack(layout, value)


@pytest.mark.parametrize(
    ("value", "bits"), [(1e6, 0x7C00), (-1e6, 0xFC00), (65520.0, 0x7C00), (65519.9, 0x7BFF)]
)
def test_fp16_rounds_to_infinity(value: float, bits: int):
    assert pack("fp16", value, 2) == struct.pack("<H", bits)


@pytest.mark.parametrize("value", [1.0, 1.999999, -3.14159, 1e-40, 3.3e38, float("inf")])
def test_bf16_truncates(value: float):
    expected = np.array([value], np.float32).view(np.uint32)[0] >> 16
    assert pack("bf16", value, 2) == struct.pack("<H", expected)


def test_fp32_overflows_to_infinity_and_keeps_nan():
    assert pack("fp32", 1e39, 4) == struct.pack("<f", float("inf"))
    assert np.isnan(np.frombuffer(pack("fp16", float("nan"), 2), np.float16)[0])


@pytest.mark.parametrize(
    ("value", "expected"), [(True, 1), (False, 0), (5, 1), (np.bool_(True), 1)]
)
def test_truth(value: Any, expected: int):
    assert pack("i1", value)[0] == expected


def test_numpy_scalars_are_numbers():
    assert pack("i32", np.int64(-5), 4) == struct.pack("<i", -5)
    assert pack("u64", np.uint64(2**64 - 1)) == b"\xff" * 8
    assert pack("fp32", np.float32(0.1), 4) == np.float32(0.1).tobytes()


@pytest.mark.parametrize(
    ("value", "expected"), [(None, 0), (0x1234, 0x1234), (Tensor(99), 99), (Tensor(0), 0), (0, 0)]
)
def test_pointers(value: Any, expected: int):
    assert struct.unpack("<Q", pack("*fp32", value))[0] == expected


@pytest.mark.parametrize(
    ("kind", "value", "error", "text"),
    [
        ("i32", 2**31, OverflowError, "argument 0: 2147483648 does not fit in int32"),
        ("i32", -(2**31) - 1, OverflowError, "does not fit in int32"),
        ("i8", 128, OverflowError, "argument 0: 128 does not fit in int8"),
        ("u8", -1, OverflowError, "argument 0: -1 does not fit in uint8"),
        ("u32", 2**32, OverflowError, "does not fit in uint32"),
        ("i64", 2**63, OverflowError, "too"),
        ("i32", 2**70, OverflowError, "too"),
        ("u64", -1, OverflowError, "negative"),
        ("u64", 2**64, OverflowError, "too"),
        ("i32", 1.5, TypeError, "float"),
        ("u64", 1.5, TypeError, "float"),
        ("i32", "x", TypeError, "str"),
        ("fp32", "x", TypeError, "real number"),
        ("ptr", "x", AttributeError, "data_ptr"),
        ("ptr", Tensor("x"), TypeError, "integer"),
        ("ptr", Tensor(KeyError("gone")), KeyError, "gone"),
        ("memory", "x", TypeError, "integer"),
    ],
)
def test_bad_arguments(kind: str, value: Any, error: type[Exception], text: str):
    calls: list[int] = []
    native = CPU_STUB(lambda *args: calls.append(1) or 0)
    launch = bind_launcher((kind, "i32"), "cpu", address(native), 0)
    with pytest.raises(error, match=text):
        launch(1, 1, 1, 0, 0, 0, value, 3)
    assert calls == []


def test_bad_leading_arguments():
    launch = make_launcher(["i32"], "cpu")
    with pytest.raises(TypeError, match="takes 7 arguments, but got 6"):
        launch(1, 1, 1, 0, 0, 0)
    with pytest.raises(ValueError, match=r"must be in 0 \.\.\. 2147483647, not -1"):
        launch(1, -1, 1, 0, 0, 0, 3)
    with pytest.raises(ValueError, match="not 2147483648"):
        launch(2**31, 1, 1, 0, 0, 0, 3)
    with pytest.raises(TypeError):
        launch(1.0, 1, 1, 0, 0, 0, 3)
    with pytest.raises(TypeError):
        launch(1, 1, 1, None, 0, 0, 3)
    with pytest.raises(InternalError, match="knows no argument type 'i7'"):
        make_launcher(["i7"], "cpu")
    with pytest.raises(InternalError, match="no launcher for target 'tpu'"):
        make_launcher([], "tpu")


def cuda_launch(
    kinds: tuple[str, ...], *args: Any, result: int = 0, grid: tuple[int, int, int] = (3, 4, 5)
) -> Any:
    """What cuLaunchKernelEx gets: (result, [(grid, block, shared, stream, count, function, parameters)])."""
    seen: list[Any] = []

    def stub(config: Any, function: int, parameters: Any, extra: int) -> int:
        c = config.contents
        values = [ctypes.string_at(parameters[i], 8) for i in range(len(kinds))]
        seen.append((list(c.grid), list(c.block), c.shared, c.stream, c.count, function, values))
        return result

    def check(out: Any, attribute: int, pointer: int) -> int:
        assert attribute == 3
        out[0] = pointer + 0x1000
        return 1 if pointer == 0xBAD else 0

    native, checker = CUDA_STUB(stub), CHECK_STUB(check)
    config = launch_config(128, 4096, cluster=(2, 1, 1))
    launch = bind_launcher(kinds, "cuda", address(native), address(checker))
    code = launch(*grid, 0x77, 0x88, config.address, *args)
    assert list(config.grid) == [2, 1, 1]
    return code, seen


def test_cuda_configuration_and_parameters():
    descriptor = ctypes.create_string_buffer(b"tensor map", 128)
    kinds = ("*fp32", "i32", "*i8", "memory", "*i32")
    code, seen = cuda_launch(kinds, Tensor(0x10), 42, None, ctypes.addressof(descriptor), 0xBAD)
    assert code == 0
    grid, block, shared, stream, count, function, values = seen[0]
    assert (grid, block, shared, stream, count, function) == (
        [6, 4, 5],
        [128, 1, 1],
        4096,
        0x77,
        1,
        0x88,
    )
    assert values[0] == struct.pack("<Q", 0x1010)  # the checked device address
    assert values[1] == struct.pack("<q", 42)
    assert values[2] == bytes(8)
    assert values[3] == b"tensor m"
    assert values[4] == struct.pack("<Q", 0xBAD)  # a raw address is not checked


def test_cuda_refuses_host_memory():
    with pytest.raises(
        HostPointerError, match=r"Pointer argument \(at 1\) cannot be accessed .*cpu tensor"
    ) as caught:
        cuda_launch(("i32", "*fp32"), 1, Tensor(0xBAD))
    assert "CPU backend" in str(caught.value)


def test_cuda_result_and_empty_grid():
    assert cuda_launch((), result=701)[0] == 701
    assert cuda_launch((), grid=(3, 0, 5)) == (0, [])


def test_cpu_kernel_runs_on_the_pool():
    text = """
define void @axpy(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
entry:
  %x = load ptr, ptr %args
  %a1 = getelementptr i64, ptr %args, i64 1
  %y = load ptr, ptr %a1
  %a2 = getelementptr i64, ptr %args, i64 2
  %a = load float, ptr %a2
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%i1, %loop]
  %xa = getelementptr float, ptr %x, i64 %i
  %ya = getelementptr float, ptr %y, i64 %i
  %xv = load float, ptr %xa
  %yv = load float, ptr %ya
  %m = fmul float %xv, %a
  %s = fadd float %m, %yv
  store float %s, ptr %ya
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
    kernel = link_object(optimise(text, host()).to_object(), ["axpy"])
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    launch = make_launcher(("*fp32", "*fp32", "fp32"), "cpu")
    for threads in (1, 2):
        pool = get_pool(threads)
        assert (
            launch(
                10,
                10,
                10,
                pool.handle,
                kernel["axpy"],
                0,
                x.ctypes.data,
                Tensor(y.ctypes.data),
                0.5,
            )
            == 0
        )
    assert (y == x + 1).all()
    assert launch(10, 0, 10, pool.handle, kernel["axpy"], 0, 0, 0, 0.5) == 0


def test_the_python_lock_is_released():
    """The stub runs Python code, and so does another thread while the launch lasts."""
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(5)
        done.set()

    def stub(*args: Any) -> int:
        inside.set()
        return 1 if done.wait(5) else 0

    thread = threading.Thread(target=other)
    thread.start()
    native = CPU_STUB(stub)
    assert bind_launcher((), "cpu", address(native), 0)(1, 1, 1, 0, 0, 0) == 1
    thread.join()


def test_nothing_leaks():
    native = CPU_STUB(lambda *args: 0)
    launch = bind_launcher(("ptr", "u64", "i32", "fp16"), "cpu", address(native), 0)
    tensor, big = Tensor(2**60), 2**63 + 5
    objects = (tensor, tensor.pointer, big)
    for _ in range(10):
        launch(1, 1, 1, 0, 0, 0, tensor, big, 12345678, 1e9)
    gc.collect()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        launch(1, 1, 1, 0, 0, 0, tensor, big, 12345678, 1e9)
        with pytest.raises(OverflowError):
            launch(1, 1, 1, 0, 0, 0, tensor, big, 2**40, 1e9)
    gc.collect()
    after = [sys.getrefcount(o) for o in objects]
    assert all(abs(a - b) < 10 for a, b in zip(after, before))


def test_same_signature_same_launcher():
    assert make_launcher(["i32"], "cpu") is make_launcher(("i32",), "cpu")
