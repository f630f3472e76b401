"""Descriptors and block pointers as values: they change in loops and branches, and functions take and give them.

A type holds elements and block; where such a value points, its extents, strides and padding travel with it.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.errors import ToolNotFound
from tessera.tools.tensor_descriptor import TensorDescriptor


@tessera.jit
def put(out, place, block):
    """Store a block of 8x16 numbers; `place` counts blocks."""
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 16)[None, :]
    tl.store(out + place * 128 + i * 16 + j, block)


# --- descriptors -----------------------------------------------------------------------------------------------
@tessera.jit
def swapped(x, y, out, n):
    a = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16])
    b = tl.make_tensor_descriptor(y, [12, 32], [32, 1], [8, 16])
    for i in range(n):
        put(out, i, a.load([8, 8]))
        a, b = b, a


@tessera.jit
def walking(x, y, out, n):
    """A new array in each round, with extents and strides of its own."""
    d = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16])
    i = 0
    while i < n:
        put(out, i, d.load([4, 8 * i]))
        if i % 2 == 0:
            d = tl.make_tensor_descriptor(y + 4 * i, [10, 20 + i], [32, 1], [8, 16])
        else:
            d = tl.make_tensor_descriptor(x, [8, 24], [64, 1], [8, 16])
        i += 1


@tessera.jit
def branching(x, y, out, n):
    """Only one side reads NaN outside."""
    d = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16], padding_option="nan")
    if n > 1:
        d = tl.make_tensor_descriptor(y, [16, 32], [32, 1], [8, 16])
    e = d if n > 2 else tl.make_tensor_descriptor(x, [4, 32], [32, 1], [8, 16])
    put(out, 0, d.load([12, 24]))
    put(out, 1, e.load([0, 0]))
    for i in range(2, 4):
        put(out, i, d.load([-4, 8]))
        d = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16], padding_option="nan")


@tessera.jit
def pick(x, y, n):
    if n > 1:
        return tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16])
    return tl.make_tensor_descriptor(y, [n + 5, 32], [32, 1], [8, 16])


@tessera.jit
def search(x, y, n):
    """Returns from inside of a loop."""
    for i in range(4):
        if i == n:
            return tl.make_tensor_descriptor(x + 32 * i, [16 - i, 32], [32, 1], [8, 16]), i
    return tl.make_tensor_descriptor(y, [3, 32], [32, 1], [8, 16]), 9


@tessera.jit
def returned(x, y, out, n):
    put(out, 0, pick(x, y, n).load([4, 4]))
    d, i = search(x, y, n)
    put(out, 1, d.load([0, 0]) + i)


@tessera.jit(noinline=True)
def pick_far(x, y, n):
    if n > 1:
        return tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16]), n
    return tl.make_tensor_descriptor(y, [n + 5, 32], [32, 1], [8, 16]), n + 1


@tessera.jit
def returned_from_far(x, y, out, n):
    d, k = pick_far(x, y, n)
    put(out, 0, d.load([4, 4]) + k)
    put(out, 1, d.load([8, 16]) + d.shape[0])


@tessera.aggregate
class Pair:
    left: tl.tensor_descriptor
    right: tl.tensor_descriptor
    count: tl.tensor

    @tessera.jit
    def turned(self):
        return Pair(self.right, self.left, self.count + 1)


@tessera.jit
def grouped(x, y, out, n):
    a = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16])
    b = tl.make_tensor_descriptor(y, [12, 32], [32, 1], [8, 16])
    pair = Pair(a, b, tl.to_tensor(0))
    both = (b, (a, n))
    for i in range(n):
        put(out, i, pair.left.load([8, 8]) + pair.count + both[1][0].load([0, 0]))
        pair = pair.turned()
        both = (both[1][0], (both[0], i))


@tessera.jit
def left_early(x, y, out, n):
    d = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16])
    for i in range(4):
        if i == n:
            break
        if i == 1:
            d = tl.make_tensor_descriptor(y, [9, 17], [32, 1], [8, 16])
            continue
        put(out, i, d.load([0, 8]))
    put(out, 3, d.load([8, 8]))


@tessera.jit
def written(x, y, out, n):
    """Stores, atomics, gathers and scatters through descriptors that a branch chose."""
    a = tl.make_tensor_descriptor(out, [16, 16], [16, 1], [8, 16])
    rows = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [1, 16])
    into = tl.make_tensor_descriptor(out + 256, [16, 16], [16, 1], [1, 16])
    if n > 1:
        a = tl.make_tensor_descriptor(out + 16, [12, 16], [16, 1], [8, 16])
        rows = tl.make_tensor_descriptor(y, [6, 32], [32, 1], [1, 16], padding_option="nan")
        into = tl.make_tensor_descriptor(out + 256, [4, 16], [16, 1], [1, 16])
    s = tl.make_tensor_descriptor(x, [16, 32], [32, 1], [8, 16])
    a.store([0, 0], s.load([0, 0]))
    a.atomic_add([6, 0], s.load([8, 0]))
    some = tl.arange(0, 8) * 3 % 8
    into.scatter(rows.gather(some, 8), some, 0)


# --- block pointers --------------------------------------------------------------------------------------------
@tessera.jit
def other_strides(x, y, out, n):
    """Constant strides before the loop, others of run time inside."""
    p = tl.make_block_ptr(x, (16, 32), (32, 1), (0, 0), (8, 16), (1, 0))
    for i in range(n):
        put(out, i, tl.load(p, boundary_check=(0, 1)))
        p = tl.make_block_ptr(y, (10, 30 - i), (32, i + 1), (i, 4), (8, 16), (0, 1))


@tessera.jit
def chosen_pointer(x, y, out, n):
    p = tl.make_block_ptr(x, (16, 32), (32, 1), (0, 0), (8, 16), (1, 0))
    q = tl.make_block_ptr(y, (14, 12 + n), (16, 2), (8, 0), (8, 16), (1, 0))
    if n > 1:
        p = q
    put(out, 0, tl.load(p, boundary_check=(1,), padding_option="zero"))
    r = p if n > 2 else tl.make_block_ptr(x, (32, 16), (1, 32), (8, 0), (8, 16), (0, 1))
    for i in range(1, 4):
        put(out, i, tl.load(r, boundary_check=(0, 1)))
        r, q = tl.advance(q, (0, i)), r


@tessera.jit
def make_pointer(x, y, n):
    if n > 1:
        return tl.make_block_ptr(x, (16, 32), (32, 1), (0, 0), (8, 16), (1, 0))
    return tl.make_block_ptr(y, (16, 32), (32, 1), (4, n), (8, 16), (0, 1))


@tessera.jit
def returned_pointer(x, y, out, n):
    p = make_pointer(x, y, n)
    while n > 0:
        n -= 1
        put(out, n, tl.load(p, boundary_check=(0, 1)))
        if n == 1:
            continue
        p = make_pointer(y, x, n)


# --- the same with NumPy ---------------------------------------------------------------------------------------
class View(NamedTuple):
    """A strided array that begins at element `start` of `x`; outside of it is `pad`."""

    x: np.ndarray
    shape: tuple[int, int] = (16, 32)
    strides: tuple[int, int] = (32, 1)
    start: int = 0
    pad: float = 0.0

    def load(self, row: int, column: int) -> np.ndarray:
        found = np.full((8, 16), self.pad, np.float32)
        for i, j in np.ndindex(8, 16):
            r, c = row + i, column + j
            if 0 <= r < self.shape[0] and 0 <= c < self.shape[1]:
                at = self.start + r * self.strides[0] + c * self.strides[1]
                found[i, j] = self.x.ravel()[at]
        return found


Blocks = dict[int, np.ndarray]


def swapped_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    views = View(x), View(y, (12, 32))
    return {i: views[i % 2].load(8, 8) for i in range(n)}


def walking_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    views = [View(x)]
    for i in range(n):
        even = View(y, (10, 20 + i), start=4 * i)
        views.append(even if i % 2 == 0 else View(x, (8, 24), (64, 1)))
    return {i: views[i].load(4, 8 * i) for i in range(n)}


def branching_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    nans = View(x, pad=np.nan)
    d = View(y) if n > 1 else nans
    e = d if n > 2 else View(x, (4, 32))
    return {0: d.load(12, 24), 1: e.load(0, 0), 2: d.load(-4, 8), 3: nans.load(-4, 8)}


def _pick(x: np.ndarray, y: np.ndarray, n: int) -> View:
    return View(x) if n > 1 else View(y, (n + 5, 32))


def returned_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    d, i = (View(x, (16 - n, 32), start=32 * n), n) if n < 4 else (View(y, (3, 32)), 9)
    return {0: _pick(x, y, n).load(4, 4), 1: d.load(0, 0) + i}


def returned_from_far_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    d, k = _pick(x, y, n), n if n > 1 else n + 1
    return {0: d.load(4, 4) + k, 1: d.load(8, 16) + d.shape[0]}


def grouped_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    a, b = View(x), View(y, (12, 32))
    pair, both, found = (a, b, 0), (b, a), {}
    for i in range(n):
        found[i] = pair[0].load(8, 8) + pair[2] + both[1].load(0, 0)
        pair, both = (pair[1], pair[0], i + 1), (both[1], both[0])
    return found


def left_early_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    d, found = View(x), {}
    for i in range(min(n, 4)):
        if i == 1:
            d = View(y, (9, 17))
        else:
            found[i] = d.load(0, 8)
    return {**found, 3: d.load(8, 8)}


def written_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    out = np.zeros((32, 16), np.float32)
    first, height = (1, 12) if n > 1 else (0, 16)
    source = View(y, (6, 32), pad=np.nan) if n > 1 else View(x)
    target = out[first : first + height]
    target[0:8] = x[0:8, 0:16]
    target[6:14] += x[8 : 8 + height - 6, 0:16][:8]
    for row in range(8):  # each once, in another order
        if n <= 1 or row < 4:
            out[16 + row] = source.load(row, 8)[0]
    return dict(enumerate(out.reshape(4, 8, 16)))


def other_strides_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    found = {0: View(x).load(0, 0)}
    found |= {i + 1: View(y, (10, 30 - i), (32, i + 1)).load(i, 4) for i in range(n - 1)}
    return {i: found[i] for i in range(n)}


def chosen_pointer_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    q = View(y, (14, 12 + n), (16, 2)), (8, 0)
    p = q if n > 1 else (View(x), (0, 0))
    checked = p[0]._replace(shape=(1 << 20, p[0].shape[1]))
    r = p if n > 2 else (View(x, (32, 16), (1, 32)), (8, 0))
    found = {0: checked.load(*p[1])}
    for i in range(1, 4):
        found[i] = r[0].load(*r[1])
        r, q = (q[0], (q[1][0], q[1][1] + i)), r
    return found


def returned_pointer_numpy(x: np.ndarray, y: np.ndarray, n: int) -> Blocks:
    def made(x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
        return View(x).load(0, 0) if n > 1 else View(y).load(4, n)

    p, found = made(x, y, n), {}
    while n > 0:
        n -= 1
        found[n] = p
        if n != 1:
            p = made(y, x, n)
    return found


CASES = {
    swapped: swapped_numpy, walking: walking_numpy, branching: branching_numpy, returned: returned_numpy,
    returned_from_far: returned_from_far_numpy, grouped: grouped_numpy, left_early: left_early_numpy,
    written: written_numpy, other_strides: other_strides_numpy, chosen_pointer: chosen_pointer_numpy,
    returned_pointer: returned_pointer_numpy,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:make_block_ptr is deprecated")
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.__name__)
def test_changing_arrays(device: Any, kernel: Any, n: int):
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-99, 99, (16, 32)).astype(np.float32) for _ in range(2))
    out = device.zeros((4, 8, 16))
    kernel[(1,)](device.array(x), device.array(y), out, n)
    want = np.zeros((4, 8, 16), np.float32)
    for place, found in CASES[kernel](x, y, n).items():
        want[place] = found
    np.testing.assert_array_equal(device.numpy(out), want)


@pytest.mark.filterwarnings("ignore:make_block_ptr is deprecated")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.__name__)
def test_changing_arrays_are_assembled(kernel: Any, capability: int):
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(kernel, signature, {}, attrs)
    try:
        built = tessera.compile(source, target=GPUTarget("cuda", capability, 32))
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert built.asm["cubin"]


# --- descriptors of the host -------------------------------------------------------------------------------------
@tessera.jit
def products(a, b, out, n):
    """Some loads are of a descriptor that stays what it is, others of one that changes."""
    acc = tl.zeros((64, 64), tl.float32)
    x, y = a, b
    for i in range(n):
        acc += tl.dot(x.load([0, i * 32]), y.load([0, i * 32]).T)
        acc += tl.dot(a.load([0, i * 32]), b.load([0, i * 32]).T)
        x, y = y, x
    d = a if n > 2 else b
    acc += tl.dot(d.load([0, 0]), a.load([0, 0]).T)
    i = tl.arange(0, 64)
    tl.store(out + i[:, None] * 64 + i[None, :], acc)


def test_what_changes_is_read_through_pointers():
    """Maps are made by the host; the kernel says which loads have none."""
    kinds = dict.fromkeys(("a", "b"), "tensordesc<fp16[64, 32]>")
    source = ASTSource(products, {**kinds, "out": "*fp32", "n": "i32"})
    try:
        built = tessera.compile(source, target=GPUTarget("cuda", 90, 32))
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert len(built.metadata.tensor_maps) == 2
    lines, first = inspect.getsourcelines(products.fn)
    found = [r for r in built.metadata.remarks if "not one that the host knows" in r]
    want = [i for i, line in enumerate(lines, first) if "x.load" in line or "d.load" in line]
    assert sorted({int(r.split(f"{__file__}:")[1].split(":")[0]) for r in found}) == want
    assert len(found) == len(set(found)) == 3  # x, y and d


@pytest.mark.parametrize("n", [1, 2, 4])
def test_descriptors_of_the_host(device: Any, n: int):
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-3, 4, (64, 128)).astype(np.float16) for _ in range(2))
    out = device.zeros((64, 64))
    given = [TensorDescriptor(device.array(x), [64, 128], [128, 1], [64, 32]) for x in (a, b)]
    products[(1,)](*given, out, n)  # pyright: ignore[reportCallIssue]
    parts = [[x[:, 32 * i : 32 * i + 32].astype(np.float32) for i in range(4)] for x in (a, b)]
    want = (parts[0][0] if n > 2 else parts[1][0]) @ parts[0][0].T
    for i in range(n):
        want += parts[i % 2][i] @ parts[1 - i % 2][i].T + parts[0][i] @ parts[1][i].T
    np.testing.assert_array_equal(device.numpy(out), want)
