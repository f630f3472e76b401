"""Tiles of any size that the TMA unit brings to rings: each buffer begins where the TMA unit can write."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.interp import run
from tessera.ir import SharedType, parse_module
from tessera.layout import box_layout, boxes_of, shared_linear
from tessera.ops import LocalAllocOp, LocalIndexOp, TensorCopyOp
from tests.unit.pointer_tma_kit import compiled

TMA_ALIGNMENT = 128
BITS = {"i8": 8, "fp16": 16, "fp32": 32, "fp64": 64}


@tessera.jit
def lines(a, b, r, c, M: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr):
    """An operand times a vector, along its rows or its columns, in each iteration."""
    m, n, k = tl.arange(0, M), tl.arange(0, 16), tl.arange(0, K)
    acc = tl.zeros((M, 16), tl.float32)
    for i in range(T):
        x = tl.load(a + i * K * M + m[:, None] * K + k[None, :])
        y = tl.load(b + i * K * 16 + k[:, None] + n[None, :] * K)
        if ROWS:
            z = tl.load(r + i * M + m)[:, None]
        else:
            z = tl.load(r + i * K + k)[None, :]
        acc = tl.dot((x * z).to(tl.float16), y, acc)
    tl.store(c + m[:, None] * 16 + n[None, :], acc)


def check_places(module: Any) -> int:
    """How many copies there are; each writes where the TMA unit can, whichever buffer is meant."""
    copies = [op for op in module.walk() if isinstance(op, TensorCopyOp)]
    for copy in copies:
        view = copy.shared.op
        assert isinstance(view, LocalIndexOp)
        ring = view.ring.op
        assert isinstance(ring, LocalAllocOp)
        t = view.result.type
        boxes = boxes_of(t.layout, t.elem.storage_bits)
        assert boxes is not None
        pattern = max(TMA_ALIGNMENT, 8 * boxes.swizzle)
        assert ring.offset % pattern == t.slot_bytes % pattern == 0
        assert t.slot_bytes >= t.bytes
        assert ring.bytes == t.slot_bytes * ring.result.type.shape[0]
    return len(copies)


@pytest.mark.parametrize(("m", "k", "rows"), [
    (16, 16, True), (16, 16, False), (32, 16, True), (16, 32, False), (64, 64, True), (64, 64, False),
])  # fmt: skip
@pytest.mark.parametrize("elem", list(BITS))
@pytest.mark.parametrize("stages", [2, 5])
def test_vectors_beside_products(elem: str, m: int, k: int, rows: bool, stages: int) -> None:
    constants = {"M": m, "K": k, "ROWS": rows, "T": 4}
    elements = {"r": elem, "c": "fp32"}
    kernel = compiled(lines, constants, pointers="abrc", elements=elements, num_stages=stages)
    module = parse_module(kernel.asm["gir"])
    assert check_places(module) == 3
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-3, 4, (4, x, k)).astype(np.float16) for x in (m, 16))
    numbers = {"i8": np.int8, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    r = rng.integers(-3, 4, (4, m if rows else k)).astype(numbers[elem])
    c = np.zeros((m, 16), np.float32)
    run(module, (1,), [a, b, r, c])
    scaled = a.astype(float) * (r[:, :, None] if rows else r[:, None, :]).astype(float)
    np.testing.assert_array_equal(c, np.einsum("imk,ink->mn", scaled, b.astype(float)))


@tessera.jit
def subtracted(a, b, r, c, K: tl.constexpr):
    """Rows of an operand minus what a small vector says."""
    m, k = tl.arange(0, 16), tl.arange(0, K)
    acc = tl.zeros((16, 16), tl.int32)
    for i in range(1, 3):
        x = tl.load(a + m[:, None] * K + k[None, :]) - tl.load(r + m)[:, None].to(tl.int8)
        acc += tl.dot(x, tl.load(b + i * K * 16 + k[:, None] + m[None, :] * K))
    tl.store(c + m[:, None] * 16 + m[None, :], acc)


def test_the_same_vector_in_each_iteration() -> None:
    kernel = compiled(
        subtracted, {"K": 32}, pointers="abrc", elem="i8", elements={"r": "i32", "c": "i32"}, num_stages=3
    )  # fmt: skip
    check_places(parse_module(kernel.asm["gir"]))


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_slots_of_every_box(bits: int) -> None:
    """Every shape that the TMA unit moves: whole patterns of its swizzle from one buffer to the next."""

    class Elem:
        storage_bits, storage_bytes = bits, bits // 8

    sizes = [1 << i for i in range(9)]
    shapes = [(n,) for n in sizes] + [(m, n) for m in sizes for n in sizes]
    shapes += [(k, m, n) for k in (1, 2, 4) for m in sizes[:5] for n in sizes[:6]]
    found = 0
    for shape in shapes:
        layout = box_layout(shape, bits)
        boxes = boxes_of(layout, bits) if layout is not None else None
        if layout is None or boxes is None:
            continue
        found += 1
        t = SharedType(shape, Elem, layout)
        assert t.slot_bytes % max(TMA_ALIGNMENT, 8 * boxes.swizzle) == 0
        assert t.slot_bytes - t.bytes < TMA_ALIGNMENT
        assert SharedType((3, *shape), Elem, layout).bytes == 3 * t.slot_bytes
        if len(boxes.starts) > 1:
            assert boxes.elements * bits // 8 % max(TMA_ALIGNMENT, 8 * boxes.swizzle) == 0
    assert found > 50


def test_rows_of_barriers_are_no_rings() -> None:
    class Elem:
        storage_bytes = 8

    assert SharedType((4,), Elem, shared_linear((4,), (0,))).bytes == 32
