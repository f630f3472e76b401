"""Arrays that overlap: a launch on the CPU sees whole tiles loaded before any is stored."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import LaunchError
from tessera.runtime.arguments.aliasing import (
    PARTLY,
    SAME,
    UNKNOWN,
    memory_range,
    relations,
    violates,
)
from tests.unit.cpu_kit import native

N = 1024


@tessera.jit
def copy(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs) + 1)


@tessera.jit
def shift(x, out, by, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs + by, tl.load(x + offs) + 1)


@tessera.jit
def steps(x, out, blocks, BLOCK: tl.constexpr):
    xs = x + tl.arange(0, BLOCK)
    outs = out + tl.arange(0, BLOCK)
    for _ in range(blocks):
        tl.store(outs, tl.load(xs) + 1)
        xs += BLOCK
        outs += BLOCK


@tessera.jit
def raw(x: "*fp32", out: "*fp32", BLOCK: tl.constexpr):  # noqa: F722
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs) + 1)


@tessera.jit
def pair(xs, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(xs[1] + offs, tl.load(xs[0] + offs) + 1)


class Tensor:
    """What torch's tensors look like from outside."""

    is_cuda = False

    def __init__(self, data: np.ndarray[Any, Any], storage: np.ndarray[Any, Any]) -> None:
        self.data, self.storage = data, storage
        self.dtype = data.dtype

    def data_ptr(self) -> int:
        return self.data.ctypes.data

    def untyped_storage(self) -> Any:
        return self

    def nbytes(self) -> int:
        return self.storage.nbytes


def separate(kernel: Any) -> bool:
    """Whether a launch took the build that assumes nothing."""
    return not kernel.metadata.assumed_disjoint


@pytest.fixture
def buffer() -> np.ndarray[Any, Any]:
    return np.arange(2 * N, dtype=np.float32)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("distance", [1, 3, 16, 100, -1, -5, -64])
def test_partial_overlap(distance: int, as_tensor: bool):
    for _ in range(4):  # the first launches of a kind, and native ones
        data = np.arange(2 * N, dtype=np.float32)
        x, out = data[100 : 100 + N], data[100 + distance : 100 + distance + N]
        want = x + 1
        if as_tensor:
            kernel = copy[(1,)](Tensor(x, data), Tensor(out, data), N)
        else:
            kernel = copy[(1,)](x, out, N)
        assert separate(kernel)
        np.testing.assert_array_equal(out, want)


def test_same_and_disjoint_arrays_stay_fused(buffer: np.ndarray[Any, Any]):
    other, launches = np.zeros(2 * N, np.float32), []
    for _ in range(3):
        launches.append(copy[(1,)](buffer, other, N))
        np.testing.assert_array_equal(other[:N], buffer[:N] + 1)
        want = buffer[:N] + 1
        launches.append(copy[(1,)](buffer, buffer, N))
        np.testing.assert_array_equal(buffer[:N], want)
        launches.append(copy[(1,)](buffer[1:], buffer[1:], N))
    assert not any(map(separate, launches))
    assert len({id(k) for k in launches}) <= 2  # aligned and not


def test_kinds_of_launches_alternate():
    """Repeated launches keep apart what the first ones of each kind decided."""
    other = np.zeros(2 * N, np.float32)
    for _ in range(4):
        data = np.arange(2 * N, dtype=np.float32)
        want = data[:N] + 1
        assert not separate(copy[(1,)](data, other, N))
        assert separate(copy[(1,)](data, data[16:], N))
        np.testing.assert_array_equal(data[16 : 16 + N], want)
        np.testing.assert_array_equal(other[:N], want)
        assert not separate(copy[(1,)](data, data, N))


@pytest.mark.parametrize("by", [1, 7, 40])
def test_one_array_at_other_offsets(by: int):
    for _ in range(3):
        data = np.arange(2 * N, dtype=np.float32)
        want = data[:N] + 1
        assert separate(shift[(1,)](data, data, by, N))
        np.testing.assert_array_equal(data[by : by + N], want)
    other = np.zeros(2 * N, np.float32)
    assert not separate(shift[(1,)](data, other, by, N))
    np.testing.assert_array_equal(other[by : by + N], data[:N] + 1)


def test_pointers_carried_by_a_loop():
    data = np.arange(2 * N, dtype=np.float32)
    want = data.copy()
    for k in range(4):
        want[5 + 256 * k :][:256] = want[256 * k :][:256] + 1
    for _ in range(2):
        data = np.arange(2 * N, dtype=np.float32)
        steps[(1,)](data, data[5:], 4, 256)
        np.testing.assert_array_equal(data, want)
    other = np.zeros(2 * N, np.float32)
    assert not separate(steps[(1,)](data, other, 4, 256))
    np.testing.assert_array_equal(other[:N], data[:N] + 1)


def test_raw_addresses_and_tuples():
    for _ in range(3):
        data = np.arange(2 * N, dtype=np.float32)
        want = data[:N] + 1
        # A number does not tell that it is an address on the CPU.
        assert separate(native(raw, (1,), data.ctypes.data, data.ctypes.data + 4, N))
        np.testing.assert_array_equal(data[1 : N + 1], want)
        assert not separate(native(raw, (1,), data.ctypes.data, data.ctypes.data, N))
        data = np.arange(2 * N, dtype=np.float32)
        assert separate(pair[(1,)]((data, data[1:]), N))
        np.testing.assert_array_equal(data[1 : N + 1], want)
        assert not separate(pair[(1,)]((data, np.empty_like(data)), N))


def test_launches_of_a_compiled_kernel(buffer: np.ndarray[Any, Any]):
    kernel = copy.warmup(buffer, np.empty_like(buffer), N, grid=(1,))
    assert not separate(kernel)
    out = np.zeros_like(buffer)
    for address in (lambda x: x, lambda x: x.ctypes.data):  # arrays, raw addresses
        out[:] = 0
        kernel[(1, 1, 1)](address(buffer), address(out), N)
        np.testing.assert_array_equal(out[:N], buffer[:N] + 1)
    with pytest.raises(LaunchError, match="share memory"):
        kernel[(1, 1, 1)](buffer, buffer[4:], N)
    free = copy.warmup(buffer, np.empty_like(buffer), N, grid=(1,), may_overlap=True)
    want = buffer[:N] + 1
    free[(1, 1, 1)](buffer, buffer[4:], N)
    np.testing.assert_array_equal(buffer[4 : 4 + N], want)


def test_foreign_memory():
    """Two arrays over one object that is no array."""
    memory = bytearray(8 * N)
    for _ in range(3):
        x = np.frombuffer(memory, np.float32, N)
        out = np.frombuffer(memory, np.float32, N, 12)
        x[:] = np.arange(N)
        want = x + 1
        assert separate(copy[(1,)](x, out, N))
        np.testing.assert_array_equal(out, want)


def test_torch():
    torch = pytest.importorskip("torch")
    for _ in range(4):
        data = torch.arange(2 * N, dtype=torch.float32)
        want = data[:N] + 1
        assert separate(copy[(1,)](data[:-1], data[1:], N))
        assert torch.equal(data[1 : N + 1], want)
        assert not separate(copy[(1,)](data, torch.empty_like(data), N))
        assert not separate(copy[(1,)](data, data, N))


def test_relations():
    a, b = np.zeros(N, np.float32), np.zeros(N, np.float32)
    assert relations([a, b]) == 0
    assert relations([a, a]) == SAME
    assert relations([a[1:], a]) == relations([a, a[::-1]]) == PARTLY
    assert relations([a, b, a[4:]]) == PARTLY << 2
    assert relations([a, b, b[4:], a]) == PARTLY << 4 | SAME << 6
    assert relations([0, 0, a]) == 0
    assert relations([a.ctypes.data + 4, a]) == PARTLY
    assert memory_range(a.ctypes.data)[1] == UNKNOWN
    many = [np.zeros(4, np.float32) for _ in range(12)]
    assert relations([*many, many[10][1:]]) == PARTLY << 54  # shared by all pairs from the 28th on
    assert violates([(10, 12, 1)], ["*fp32"] * 13, [*many, many[10][1:]])


def test_native_relations():
    """The native code agrees with `relations`."""
    from tessera.runtime.native.launcher import native_code

    native = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        native_code()["fast_relations"]
    )
    a, b = np.zeros(N, np.float32), np.zeros(N, np.float32)
    many = [np.zeros(4, np.float32) for _ in range(12)]
    cases = [
        [a, b],
        [a, a],
        [a[1:], a],
        [a, a[::-1]],
        [a, b, b[4:], a],
        [0, 0, a],
        [*many, many[10][1:]],
        [*many, *many],
    ]
    for case in cases:
        ranges = [memory_range(x) for x in case]
        slots = (ctypes.c_int64 * (2 * len(case)))()
        sizes = (ctypes.c_int64 * (2 * len(case)))(*([-1] * 2 * len(case)))
        for i, (start, size) in enumerate(ranges):  # every second one is no pointer
            slots[2 * i], sizes[2 * i] = start, size
        assert native(slots, sizes, 2 * len(case)) == relations(case)
