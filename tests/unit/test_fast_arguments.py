"""Launches of tuples, descriptors and arrays of other libraries by native code; where torch keeps a tensor's fields."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import ctypes
import enum
import gc
import json
import struct
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import ForeignPointerError, LaunchError, MissingMemory, UnknownOption
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.tensors import TensorWrapper
from tessera.runtime.arguments.torch_layout import Layout, find_layout, tells_the_truth
from tessera.runtime.cuda.driver_api import LaunchConfig, launch_config
from tessera.runtime.native import fast_path as fast_launch
from tessera.runtime.native import tensor_maps
from tessera.runtime.native.array_types import ArrayTypes, array_types, read_array
from tessera.runtime.native.fast_path import FastPath, Start, units_of
from tessera.runtime.native.structures import READ_ONLY, READ_TENSOR, STRIDED
from tessera.runtime.native.tensor_maps import Instead, TensorMaps
from tests.unit.fast_launch_kit import READERS, Tensor
from tests.unit.launch_counter_kit import Counter
from tests.unit.tensor_maps_kit import FakeDriver

N = 64
Pair = namedtuple("Pair", ["array", "factor"])  # noqa: PYI024


@tessera.jit
def scaled(pair, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(pair[0] + i) * pair[1])


@tessera.jit
def nested(pairs, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(
        out + i, tl.load(pairs[0][0] + i) * pairs[0][1] + tl.load(pairs[1][0] + i) * pairs[1][1]
    )


@tessera.jit
def window(source, out, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tl.store(out + i[:, None] * COLUMNS + j[None, :], source.load([row, 0]))


@tessera.jit
def plus_one(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1)


def test_tuples_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(scaled, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for times in range(3):
        for pair in ((x, 2), (x, 2.5), (x, 1), Pair(x, 3), Pair(x, 16)):
            scaled[(1,)](pair, out, N=N)
            np.testing.assert_array_equal(out, x * pair[1])
            out[:] = 0
        if times == 0:
            count.calls = 0
    assert count.calls == 0
    scaled[(1,)]((x, 2, 3), out, N=N)  # another length is another kernel
    assert count.calls == 1


def test_nested_tuples_and_wrong_ones(monkeypatch: pytest.MonkeyPatch):
    count = Counter(nested, monkeypatch)
    x, y, out = np.arange(N, dtype=np.float32), np.ones(N, np.float32), np.zeros(N, np.float32)
    for k in range(4):
        nested[(1,)](((x, k + 2), (y, 0.5)), out, N=N)
        np.testing.assert_array_equal(out, x * (k + 2) + y * 0.5)
    assert count.calls == 1
    with pytest.raises(TypeError):
        nested[(1,)](((x, "s"), (y, 0.5)), out, N=N)
    many = (
        (x, 2),
        (y, 3),
        *((y, k) for k in range(100)),
    )  # more items than native code has room for
    nested[(1,)](many, out, N=N)
    np.testing.assert_array_equal(out, x * 2 + y * 3)


@tessera.jit
def affine(x, out, FACTORS: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * FACTORS[0] + FACTORS[1][0])


def test_compile_time_tuples_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(affine, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for turn in range(3):
        for a, b in ((2, 3), (2, 4), (2, 4.0), (2.5, True), (1, 0)):
            affine[(1,)](x, out, (a, (b, "name", tl.float32, None)), N=N)
            np.testing.assert_array_equal(out, x * a + b)
            affine[(1,)](x, out, FACTORS=(a, (b,)), N=N)
            np.testing.assert_array_equal(out, x * a + b)
        if turn == 0:
            assert count.calls == 10  # 4 and 4.0 are different values
            count.calls = 0
    assert count.calls == 0
    for b in (2**70, [5]):  # no words tell these apart
        for _ in range(2):
            affine[(1,)](x, out, (0, (5, b)), N=N)
    assert count.calls == 4
    many = tuple(range(100))  # more items than native code has room for
    affine[(1,)](x, out, (2, (3, many)), N=N)
    np.testing.assert_array_equal(out, x * 2 + 3)


def test_compile_time_tuples_live_as_long_as_their_kernels():
    x, out = np.zeros(N, np.float32), np.zeros(N, np.float32)
    name = "".join(["a", "name"])
    before = sys.getrefcount(name)
    for _ in range(3):
        affine[(1,)](x, out, (2, (3, name)), N=N)
    assert sys.getrefcount(name) > before
    affine.device_caches.clear()
    gc.collect()
    for _ in range(3):
        affine[(1,)](x, out, (2, (3, name)), N=N)
        np.testing.assert_array_equal(out, 3)


@tessera.jit
def numbers(x, out, scale, count: tl.int32, shift: tl.float32, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i, i < count, other=0.0) * scale + shift)


def test_numpy_scalars_stay_native(monkeypatch: pytest.MonkeyPatch):
    launches = Counter(numbers, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for turn in range(3):
        for count, shift in (
            (np.int64(5), np.float32(1.5)), (np.uint8(16), np.float64(2.5)), (np.int32(1), np.float16(2)),
        ):  # fmt: skip
            numbers[(1,)](x, out, np.float64(0.5), count, shift, N=N)
            want = np.where(np.arange(N) < count, x, 0) * np.float32(0.5) + np.float32(shift)
            np.testing.assert_array_equal(out, want)
        if turn == 0:
            launches.calls = 0
    assert launches.calls == 0
    for wrong in ("5", None, object(), np.float32(5)):
        with pytest.raises((TypeError, ValueError)):
            numbers[(1,)](x, out, 0.5, wrong, 1.0, N=N)


class OnDevice:
    """A tensor somewhere else, as other libraries show theirs."""

    dtype, nbytes, shape = np.dtype(np.float32), 4 * N, (N,)

    def __init__(self, kind: str) -> None:
        self.device = SimpleNamespace(type=kind)
        self.is_cuda = kind == "cuda"

    def data_ptr(self) -> int:
        return 0 if self.device.type == "meta" else 1 << 40


@pytest.mark.parametrize("kind", ["cuda", "meta", "mps"])
def test_arrays_of_other_devices_are_refused(kind: str):
    x, out = np.zeros(N, np.float32), np.zeros(N, np.float32)
    for _ in range(3):
        with pytest.raises(ForeignPointerError, match="cannot be accessed from the CPU"):
            plus_one[(1,)](x, OnDevice(kind), N=N)
        plus_one[(1,)](x, out, N=N)


def test_tensors_without_memory_are_refused():
    torch = pytest.importorskip("torch")
    x, out = torch.zeros(N), torch.zeros(N)
    for _ in range(4):
        with pytest.raises(
            MissingMemory, match=r"`x` of kernel plus_one has no memory \(its device is 'meta'"
        ):
            plus_one[(1,)](torch.empty(N, device="meta"), out, N=N)
        plus_one[(1,)](x, out, N=N)
        plus_one[(0,)](torch.empty(0), out, N=N)  # nothing is there, and nothing is read
    assert torch.equal(out, x + 1)


def test_pre_run_hooks_before_native_launches(monkeypatch: pytest.MonkeyPatch):
    count = Counter(plus_one, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    seen: list[Any] = []

    def hook(*args: Any, **kwargs: Any) -> None:
        seen.append((len(args), kwargs))
        args[1][:] = 0

    grid = plus_one[(1,)]
    for _ in range(3):
        grid(x, out, N=N)
    count.calls = 0
    plus_one.add_pre_run_hook(hook)
    try:
        for turn in range(4):
            grid(x, out, N=N)
            np.testing.assert_array_equal(out, x + 1)
            if turn == 0:
                assert count.calls == 1
        assert count.calls == 1
        about = {"debug": False, "instrumentation_mode": "", "N": N}
        assert seen == [(2, about)] * 4
        plus_one.add_pre_run_hook(lambda *args, **kwargs: seen.clear())
        grid(x, out, N=N)
        assert not seen
        plus_one.warmup(x, out, N=N, grid=(1,))
        assert not seen
        plus_one.pre_run_hooks.pop()
        plus_one.warmup(x, out, N=N, grid=(1,))
        assert len(seen) == 1
    finally:
        plus_one.pre_run_hooks.clear()
    count.calls = 0
    grid(x, out, N=N)
    assert (len(seen), count.calls) == (1, 0)


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


@tessera.jit
def by_mode(x, out, MODE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1)


def test_names_that_were_read_from_a_file_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(by_mode, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for turn in range(4):
        options: dict[str, Any] = json.loads(
            '{"MODE": 3, "N": 64, "num_warps": 2, "num_stages": 1}'
        )
        assert sum(name is not sys.intern(name) for name in options) == 3  # a letter is one object
        by_mode[(1,)](x, out, **options)
        np.testing.assert_array_equal(out, x + 1)
        out[:] = turn
    assert count.calls == 1
    wrong: dict[str, Any] = dict(zip("MODE N nowarps".split(), (3, 64, 1), strict=True))  # fmt: skip  # noqa: SIM905
    with pytest.raises(UnknownOption, match="nowarps"):
        by_mode[(1,)](x, out, **wrong)


@pytest.mark.parametrize("value", [Mode.ONE, len, ("silu", 2)])
def test_compile_time_values_that_stay_native(monkeypatch: pytest.MonkeyPatch, value: object):
    count = Counter(by_mode, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for _ in range(3):
        by_mode[(1,)](x, out, MODE=value, N=N)
        np.testing.assert_array_equal(out, x + 1)
    assert count.calls == 1
    if value is Mode.ONE:
        by_mode[(1,)](x, out, MODE=Mode.TWO, N=N)
        assert count.calls == 2


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: "-".join(("silu", "tanh")), "tanh"),
        (lambda: ("-".join(("silu", "tanh")), 2), ("tanh", 2)),
        (lambda: tl.constexpr(3), 4),
        (lambda: tl.constexpr("-".join(("gelu", "tanh"))), tl.constexpr("relu")),
        (lambda: tl.constexpr((1, 2)), (1, 3)),
    ],
    ids=[
        "string",
        "string in a tuple",
        "constexpr",
        "constexpr of a string",
        "constexpr of a tuple",
    ],
)
def test_equal_compile_time_values_that_are_made_anew_stay_native(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], object], other: object
):
    count = Counter(by_mode, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for turn in range(6):
        by_mode[(1,)](x, out, MODE=make(), N=tl.constexpr(N))
        np.testing.assert_array_equal(out, x + 1)
        out[:] = turn
        gc.collect()
    assert count.calls == 1
    by_mode[(1,)](x, out, MODE=other, N=N)
    assert count.calls == 2


def test_compile_time_strings_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    count = Counter(by_name, monkeypatch)
    out = np.zeros(1, np.int32)
    for turn in range(40):
        number = turn % 20
        by_name[(1,)](out, NAME="".join(("n", str(number))))  # the string is gone after the launch
        assert out[0] == number
    assert count.calls == 20


@tessera.constexpr_function
def number_in(name: str) -> int:
    return int(name[1:])


@tessera.jit
def by_name(out, NAME: tl.constexpr):
    tl.store(out, number_in(NAME))


def test_element_types_of_torch_stay_native(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    count = Counter(by_mode, monkeypatch)
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for _ in range(3):
        for kind in (torch.float16, torch.bfloat16):
            by_mode[(1,)](x, out, MODE=kind, N=N)
    assert count.calls == 2


def test_descriptors_stay_native(monkeypatch: pytest.MonkeyPatch):
    count = Counter(window, monkeypatch)
    out = np.zeros((4, 16), np.float32)
    for turn in range(4):
        for dtype in (np.float32, np.int32):
            base = (np.arange(8 * 32) + turn).astype(dtype).reshape(8, 32)
            window[(1,)](
                TensorDescriptor(base, [8, 32], [32, 1], [4, 16]), out, 2, ROWS=4, COLUMNS=16
            )
            np.testing.assert_array_equal(out, base[2:6, :16])
            window[(1,)](
                TensorDescriptor(base, (5, 8), (32, 1), (4, 16)), out, 3, ROWS=4, COLUMNS=16
            )
            np.testing.assert_array_equal(out[:2, :8], base[3:5, :8])
            assert not out[2:].any() and not out[:, 8:].any()  # beyond the described extents
    assert count.calls == 2  # one for each element type


def test_changed_descriptors(monkeypatch: pytest.MonkeyPatch):
    count = Counter(window, monkeypatch)
    base, out = np.arange(256.0, dtype=np.float32).reshape(8, 32), np.zeros((4, 16), np.float32)
    made = TensorDescriptor(base, [8, 32], [32, 1], [4, 16])
    for _ in range(3):
        window[(1,)](made, out, 0, ROWS=4, COLUMNS=16)
    before = count.calls
    made.base = base[1:]
    made.shape[0] = 3  # pyright: ignore[reportIndexIssue]
    window[(1,)](made, out, 0, ROWS=4, COLUMNS=16)
    np.testing.assert_array_equal(out[:3], base[1:4, :16])
    assert not out[3].any() and count.calls == before
    made.padding = "nan"
    window[(1,)](made, out, 0, ROWS=4, COLUMNS=16)
    assert np.isnan(out[3]).all() and count.calls == before + 1
    for broken in ({"shape": [8]}, {"strides": [32, "s"]}, {"shape": 5}, {"block_shape": None}):
        odd = TensorDescriptor(base, [8, 32], [32, 1], [4, 16])
        odd.__dict__.update(broken)
        with pytest.raises(Exception):  # noqa: B017  whatever Python says
            window[(1,)](odd, out, 0, ROWS=4, COLUMNS=16)
    del made.__dict__["padding"]
    made.__dict__.pop("base")
    with pytest.raises(AttributeError):
        window[(1,)](made, out, 0, ROWS=4, COLUMNS=16)


class Exporter:
    """An array of another library."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


@pytest.mark.parametrize(
    "wrap", [Exporter, lambda x: TensorWrapper(x.view(np.int32), tl.float32), lambda x: np.frombuffer(x, np.float32)]
)  # fmt: skip
def test_arrays_that_python_reads_stay_native(monkeypatch: pytest.MonkeyPatch, wrap: Any):
    count = Counter(plus_one, monkeypatch)
    for turn in range(5):
        x, out = np.full(N + 4, turn, np.float32), np.zeros(N, np.float32)
        plus_one[(1,)](wrap(x), out, N=N)
        np.testing.assert_array_equal(out, x[:N] + 1)
        if turn == 1:
            count.calls = 0
        # partly the same memory: another build
        want = x[:N] + 1
        plus_one[(1,)](wrap(x), x[4:], N=N)
        np.testing.assert_array_equal(x[4:], want)
    assert count.calls <= 2


def test_reading_of_arrays():
    x = np.zeros((4, 4), np.float32)
    assert read_array(x) == (x.ctypes.data, tl.float32, False, 64, 64, 0)
    assert read_array(x[1:]) == (x.ctypes.data + 16, tl.float32, False, 64, 48, 0)
    assert (
        read_array(x.T)[5] == STRIDED
        and read_array(np.broadcast_to(x, (2, 4, 4)))[5] == STRIDED | READ_ONLY
    )
    interface = {"data": (512, False), "typestr": "<f2", "shape": (4,), "version": 3}
    there = SimpleNamespace(__cuda_array_interface__=interface, nbytes=8)
    assert read_array(there)[:4] == (512, tl.float16, True, 8)
    for typestr in (">f4", "<c8"):
        interface["typestr"] = typestr
        with pytest.raises(TypeError):
            read_array(there)
    with pytest.raises(TypeError):
        read_array("text")
    types = ArrayTypes()
    assert not types.learn("text")
    assert not types.learn(SimpleNamespace(data_ptr=lambda: 0, dtype="complex64"))


def test_numbers_of_units():
    x = np.zeros((4, 16), np.float32)
    descriptor = TensorDescriptor(x, [4, 16], [16, 1], [4, 16])
    kinds = (
        "*fp32",
        ("i32", "constexpr", ("fp32",)),
        "tensordesc<fp32[4, 16]>",
        "constexpr",
        "i32",
    )
    found = units_of(kinds, (x, (5, 1, (0.5,)), descriptor, (1, 2), 3))
    assert found == ([0, 2, 5, 6, 7, 8, 9, 10, 14], 15)


# --- maps on a GPU that the test plays ---
def mapped(a, out, n):
    pass


class MapMachine:
    """A driver that notes the maps which reach it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: int = 0) -> None:
        self.encoder = FakeDriver()
        words = [("arg", 0), ("arg", 1), ("arg", 2), ("arg", 3), ("const", 1)]
        specs = [
            ("fp16", "zero", [4, 16], 32, words),
            ("fp32", "zero", [4], 0, [("arg", 5), ("arg", 6), ("const", 1)]),
        ]
        api: Any = self.encoder
        self.encoder.tensor_map_encode = self.encode  # type: ignore[method-assign]
        self.kept: list[Any] = []
        self.maps, self.result, self.encoded = TensorMaps(api, specs), result, 0
        types = ArrayTypes()
        address, dtype, cuda, storage, size = (
            ctypes.cast(r, ctypes.c_void_p).value or 0 for r in READERS
        )
        types.add(Tensor, READ_TENSOR, (0, address, dtype, 0, cuda, 0, storage, size), READERS)
        monkeypatch.setattr(fast_launch, "array_types", lambda: types)
        types.context[0] = self.address(
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))(self.current)
        )
        slots = ctypes.POINTER(ctypes.c_void_p)
        config = ctypes.POINTER(LaunchConfig)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, config, ctypes.c_void_p, slots, ctypes.c_void_p)
        self.entry = self.address(kind(self.launch))
        self.template = launch_config(threads=128, shared=0)
        self.path = FastPath(tl_params(mapped), [], self.fallback)
        self.seen: list[tuple[Any, ...]] = []
        self.python = 0

    def address(self, function: Any) -> int:
        self.kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def current(self, out: Any) -> int:
        out[0] = 0x1000
        return 0

    def encode(self) -> Any:
        def made(place: int, kind: int, rank: int, base: int, *rest: Any) -> int:
            ctypes.memmove(place, base.to_bytes(8, sys.byteorder) * 16, 128)
            self.encoded += 1
            return self.result

        return made

    def launch(self, config: Any, function: int, slots: Any, extra: Any) -> int:
        values = [ctypes.c_uint64.from_address(slots[i]).value for i in range(7)]
        if function != 1:
            self.seen.append((values, function, config.contents.block[0]))
            return 0
        maps = [ctypes.string_at(slots[7 + i], 128) for i in range(2)]
        assert all(slots[7 + i] % 64 == 0 for i in range(2))
        self.seen.append((values, *(int.from_bytes(m[:8], sys.byteorder) for m in maps)))
        return 0

    def fallback(self, key: bytes | None, grid: Any, *args: Any) -> str:
        self.python += 1
        start = Start(
            cuda=True, entry=self.entry, function=1, config=self.template.address, pool=0, stream=lambda device: 5,
            device=0, fail=lambda status: None, context=1, maps=self.maps,
        )  # fmt: skip
        if key is not None:
            kinds = ("tensordesc<fp16[4, 16]>", "*fp32", "i32")
            self.path.install(key, args, units_of(kinds, args), {}, self, start, [])
        return "python"


def tl_params(fn: Any) -> Any:
    return tessera.jit(fn).params


def descriptor(address: int, rows: int = 8) -> Any:
    made = TensorDescriptor.__new__(TensorDescriptor)
    made.__dict__.update(
        base=Tensor(address, tl.float16), shape=[rows, 32], strides=[32, 1], block_shape=[4, 16], padding="zero",
        round_f32_to_tf32=False,
    )  # fmt: skip
    return made


def test_maps_reach_the_launch(monkeypatch: pytest.MonkeyPatch):
    m = MapMachine(monkeypatch)
    out = Tensor(0x9000)
    assert m.path.launch((1,), descriptor(0x7000), out, 7) == "python"
    for turn, (address, n) in enumerate(
        [(0x7000, 7), (0x7100, 7), (0x7000, 7), (0x7100, 9), (0x7100, 9)]
    ):
        assert m.path.launch((1,), descriptor(address), out, n) is m, turn
        assert m.seen[-1] == ([address, 8, 32, 32, 1, 0x9000, n], address, 0x9000)
    assert m.encoded == 2 * 3  # one pair for each set of values
    assert m.python == 1
    monkeypatch.setattr(tensor_maps, "MOST_MAPS", 2)
    for address in range(0x7000, 0x8000, 0x100):
        m.path.launch((1,), descriptor(address), out, 7)
        assert m.seen[-1][1:] == (address, 0x9000)
    assert len(m.maps.known) <= 3
    m.maps.learn = lambda key: False  # type: ignore[method-assign]


def test_a_precondition_chooses_the_kernel(monkeypatch: pytest.MonkeyPatch):
    """Values and grid decide, launch by launch, without Python once they were seen."""
    m = MapMachine(monkeypatch)
    template, asked = launch_config(threads=64), []
    specs: list[Any] = [
        (
            "fp16",
            "zero",
            [4, 16],
            32,
            [("arg", 0), ("code", 3), ("code", 0), ("arg", 3), ("const", 1)],
        )
    ]
    specs.append(("fp32", "zero", [4], 0, [("arg", 5), ("arg", 6), ("const", 1)]))
    code = [("arg", 6), ("count", 0), ("const", 3), ("mul", 0, 2, 64), ("id", 0), ("add", 0, 4, 32)]
    precondition = [(3, 1, 60, 1), (5, 0, 14, 1), (0, 0, 99, 2)]

    def instead() -> Instead:
        asked.append(1)
        return Instead(2, template.address, None)

    api: Any = m.encoder
    m.maps = TensorMaps(api, specs, code, precondition, instead)
    m.path.launch((1,), descriptor(0x7000), Tensor(0x9000), 8)
    for _ in range(3):
        for n, grid, usable in [
            (8, 1, True),
            (7, 1, False),
            (8, 7, True),
            (8, 8, False),
            (22, 1, False),
            (12, 3, True),
        ]:
            assert m.path.launch((grid,), descriptor(0x7000), Tensor(0x9000), n) is m
            values = [0x7000, 8, 32, 32, 1, 0x9000, n]
            assert m.seen[-1] == ((values, 0x7000, 0x9000) if usable else (values, 2, 64))
    assert m.python == 1
    assert len(asked) == 3


def test_kernels_behind_kernels_whose_blocks_run_several_programs(monkeypatch: pytest.MonkeyPatch):
    """The first kernel starts as many blocks as there is room for and gets the grid; where its precondition fails, the
    second one runs with its own map and one block a program, then the third without any."""
    m = MapMachine(monkeypatch)
    second, third = launch_config(threads=64), launch_config(threads=32)
    words = [("arg", 0), ("arg", 1), ("arg", 2), ("arg", 3), ("const", 1)]
    spec: Any = ("fp16", "zero", [4, 16], 32, words)
    code = [("arg", 6), ("arg", 5)]
    api: Any = m.encoder
    seen: list[Any] = []

    def launch(config: Any, function: int, slots: Any, extra: Any) -> int:
        memory = [ctypes.string_at(slots[7 + i], 12) for i in range({1: 2, 2: 1, 3: 0}[function])]
        found = [int.from_bytes(memory[0][:8], sys.byteorder)] if memory else []
        found += [struct.unpack("=3i", x) for x in memory[1:]]
        seen.append((function, config.contents.block[0], tuple(config.contents.grid), *found))
        return 0

    monkeypatch.setattr(m, "launch", launch)
    config = ctypes.POINTER(LaunchConfig)
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, config, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
    )
    m.entry = m.address(kind(launch))
    behind = TensorMaps(api, [spec], code, [(0, 0, 20, 1)], lambda: Instead(3, third.address, None))
    m.maps = TensorMaps(
        api, [spec], code, [(0, 0, 10, 1)], lambda: Instead(2, second.address, behind), resident=5
    )
    m.path.launch((1,), descriptor(0x7000), Tensor(0x9000), 8)
    for _ in range(2):
        for n, grid, wanted in [
            (8, (3,), (1, 128, (3, 1, 1), 0x7000, (3, 1, 1))),
            (8, (3, 7), (1, 128, (5, 1, 1), 0x7000, (3, 7, 1))),
            (15, (3, 7, 2), (2, 64, (3, 7, 2), 0x7000)),
            (25, (3, 7, 2), (3, 32, (3, 7, 2))),
            (9, (6, 1, 2), (1, 128, (5, 1, 1), 0x7000, (6, 1, 2))),
        ]:
            assert m.path.launch(grid, descriptor(0x7000), Tensor(0x9000), n) is m
            assert seen[-1] == wanted
    assert m.python == 1
    found = m.maps([0x7000, 8, 32, 32, 1, 0x9000, 8], (3, 7, 1))
    assert found.usable
    assert found.blocks == 5


def test_maps_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch):
    m = MapMachine(monkeypatch)
    m.path.launch((1,), descriptor(0x7000), Tensor(0x9000), 7)
    m.result = 1
    for _ in range(20):
        with pytest.raises(LaunchError, match="no tensor map"):
            m.path.launch((1,), descriptor(0x7000), Tensor(0x9000), 7)
    assert not m.seen
    m.result = 0
    assert m.path.launch((1,), descriptor(0x7000), Tensor(0x9000), 7) is m


# --- torch's fields ---
def tensors(torch: Any) -> list[Any]:
    base = torch.arange(N * 8, dtype=torch.float32).reshape(8, N)
    views = [base, base[3], base[:, 5], base.T, base[2:5, 7:9], base[8:], base.expand(2, 8, N)]
    types = [torch.bfloat16, torch.complex64, torch.bool]
    others = [
        torch.zeros(0), torch.zeros(()), torch.nn.Parameter(base[1]), base.view(torch.int32),
        torch.from_numpy(np.zeros(N)), torch.zeros(N, device="meta"), torch.zeros(4).requires_grad_() * 2,
        torch._lazy_clone(torch.zeros(4)),
        torch.frombuffer(bytearray(64), dtype=torch.int16),
    ]  # fmt: skip
    return [*views, *(torch.zeros(N, dtype=t)[3:] for t in types), *others]


def test_fields_of_torch_tensors():
    torch = pytest.importorskip("torch")
    layout = find_layout(torch)
    assert layout is not None  # a torch that lays tensors out in another way should be looked at
    found = tensors(torch)
    assert all(tells_the_truth(layout, x) for x in found)
    wrong = Layout({**layout.fields, "offset": layout.fields["offset"] + 8}, layout.sizes)
    assert not tells_the_truth(wrong, found[1])


OVERRIDES = """
import torch
import tessera
import tessera.language as tl


@tessera.jit
def fill(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 0, i < n)


def zeros(size, dtype=None, layout=None, device=None, pin_memory=None):
    x = torch.empty(size, dtype=dtype or torch.float32, device=device)
    fill[(tessera.cdiv(x.numel(), 64),)](x, x.numel(), BLOCK=64)
    return x


library = torch.library.Library("aten", "IMPL")
library.impl("zeros", zeros, "CompositeExplicitAutograd")
library.impl("zeros", zeros, "BackendSelect")
for _ in range(4):
    assert torch.equal(torch.zeros(100), torch.full((100,), 0.0))
print("done")
"""


def test_a_library_that_makes_tensors_by_kernels(tmp_path: Path):
    """Looking at torch's tensors makes some, which launches kernels, whose tensors are looked at."""
    pytest.importorskip("torch")
    script = tmp_path / "overrides.py"
    script.write_text(OVERRIDES)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False, timeout=300
    )  # fmt: skip
    assert ran.stdout.strip() == "done", ran.stderr[-3000:]


def test_launches_with_torch_tensors(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    count = Counter(plus_one, monkeypatch)
    for turn in range(3):
        base = torch.arange(N * 8, dtype=torch.float32).reshape(8, N) + turn
        for x in (
            base[3],
            torch.nn.Parameter(base[2]),
            base.view(-1)[5:],
            torch.from_numpy(np.ones(N, np.float32)),
        ):
            out = torch.zeros(N)
            plus_one[(1,)](x, out, N=N)
            assert torch.equal(out, x.detach().reshape(-1)[:N] + 1)
        if turn == 1:
            count.calls = 0
    assert count.calls == 0
    assert array_types().layout is not None


def test_memory_that_is_shared_until_written():
    torch = pytest.importorskip("torch")
    out = torch.zeros(N)
    for _ in range(3):
        plus_one[(1,)](torch.ones(N), out, N=N)
    original = torch.zeros(N)
    clone = torch._lazy_clone(original)
    plus_one[(1,)](torch.ones(N), clone, N=N)
    assert torch.equal(clone, torch.full((N,), 2.0)) and not original.any()


# --- load ---
def test_no_reference_is_lost():
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    base = np.zeros((8, 32), np.float32)
    made = TensorDescriptor(base, [8, 32], [32, 1], [4, 16])
    tile = np.zeros((4, 16), np.float32)

    def launches() -> None:
        for _ in range(50):
            scaled[(1,)]((x, 2.5), out, N=N)
            window[(1,)](made, tile, 2, ROWS=4, COLUMNS=16)
            plus_one[(1,)](Exporter(x), out, N=N)
            with pytest.raises(TypeError):
                scaled[(1,)]((x, "s"), out, N=N)

    launches()
    watched = [
        x,
        out,
        base,
        made,
        made.shape,
        made.strides,
        made.padding,
        made.block_shape,
        type(made),
        None,
        True,
        8,
    ]
    gc.collect()
    before = [sys.getrefcount(w) for w in watched]
    launches()
    gc.collect()
    after = [sys.getrefcount(w) for w in watched]
    assert all(abs(b - a) < 40 for a, b in zip(before, after, strict=True)), (before, after)


def test_threads_launch_while_others_forget_and_collect():
    kernels = [tessera.jit(fn.fn) for fn in (scaled, plus_one, window)]
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(seed: int) -> None:
        x, out = np.full(N, seed, np.float32), np.zeros(N, np.float32)
        base, tile = np.full((8, 32), seed, np.float32), np.zeros((4, 16), np.float32)
        try:
            for turn in range(150):
                kernels[0][(1,)]((x, turn + 2), out, N=N)
                assert (out == seed * (turn + 2)).all()
                kernels[1][lambda meta: (1,)](Exporter(x), out=out, N=N)
                assert (out == seed + 1).all()
                kernels[2][[1]](
                    TensorDescriptor(base, [8, 32], [32, 1], [4, 16]), tile, 2, ROWS=4, COLUMNS=16
                )
                assert (tile == seed).all()
        except BaseException as error:
            failures.append(error)

    def disturb() -> None:
        while not stop.is_set():
            for kernel in kernels:
                kernel.forget_fast_path()
            gc.collect()
            stop.wait(0.005)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    other = threading.Thread(target=disturb)
    for thread in (*workers, other):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    other.join()
    assert not failures, failures[0]
