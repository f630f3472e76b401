"""Matrix products for the GPU benchmark: operands in every order, small and odd sizes (kernels: products.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sources
import torch
from cases import Case, extents, in_turn, last_line, name_of, normal

# Tiles: rows, columns, depth, warps, stages.
LARGE = ((128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3))
SMALL = (
    (128, 128, 64, 4, 3), (128, 64, 64, 4, 3), (64, 128, 64, 4, 3), (64, 64, 64, 4, 3), (64, 128, 64, 4, 5),
    (64, 64, 64, 4, 5), (64, 128, 64, 4, 8), (64, 64, 64, 4, 8), (64, 64, 128, 4, 3), (64, 64, 128, 4, 4),
    (64, 32, 64, 4, 6), (64, 32, 64, 4, 8), (32, 64, 64, 4, 5),
)  # fmt: skip
FLAT = (
    (16, 64, 128, 4, 4), (16, 64, 128, 4, 6), (16, 64, 256, 4, 4), (16, 64, 64, 4, 8), (16, 128, 64, 4, 4),
    (16, 32, 256, 4, 4), (64, 64, 128, 4, 4), (64, 64, 128, 4, 6), (64, 64, 64, 4, 6),
)  # fmt: skip

# fp32, and 8 bits. Triton holds the tile that a descriptor stores in shared memory of its own: fewer stages fit.
WIDE: dict[str, tuple[tuple[int, ...], ...]] = {
    "pointers": ((128, 256, 32, 8, 4), (256, 128, 32, 8, 4)),
}
WIDE["descriptors"] = (*WIDE["pointers"], (128, 256, 32, 8, 2), (128, 128, 32, 8, 4))
TALL: dict[str, tuple[tuple[int, ...], ...]] = {
    "pointers": ((128, 256, 128, 8, 4), (256, 128, 128, 8, 4)),
}
TALL["descriptors"] = (
    *TALL["pointers"],
    (128, 256, 128, 8, 3),
    (256, 128, 128, 8, 3),
    (128, 256, 128, 8, 2),
)


def product(
    dtype: Any, m: int, n: int, k: int, orders: str, tiles: Any, how: str = "pointers"
) -> Case:
    """`orders`: of a and b, "r" for rows that are contiguous, "c" for columns; the fastest of `tiles` counts. cuBLAS
    has 8-bit products for "rc" only: it is timed on copies in these orders."""

    def operand(rows: int, cols: int, order: str) -> torch.Tensor:
        x = normal(*((rows, cols) if order == "r" else (cols, rows)))
        x = (20 * x).clamp(-127, 127).to(dtype) if dtype == torch.int8 else x.to(dtype)
        return x if order == "r" else x.T

    a, b = operand(m, k, orders[0]), operand(k, n, orders[1])
    out = {torch.int8: torch.int32, torch.float8_e4m3fn: torch.float16}.get(dtype, dtype)
    some = torch.randint(0, m, (64,), device="cuda")
    wide = [x.float().double() for x in (a[some], b)]
    expected = wide[0] @ wide[1]
    del wide
    processors = torch.cuda.get_device_properties(0).multi_processor_count

    def build(compiler: str) -> Any:
        module = sources.load(Path(__file__).with_name("products.py"), compiler)
        found: dict[Any, tuple[Callable[[], Any], torch.Tensor]] = {}
        for tile in tiles:
            c = torch.empty(m, n, device="cuda", dtype=out)
            try:
                if how == "pointers":
                    call = module.pointer_call(a, b, c, tile)
                else:
                    call = module.descriptor_call(a, b, c, tile, processors)
                call()
                found[tile] = call, c
            except Exception as error:
                print(f"{compiler} {tile}: {type(error).__name__}: {last_line(error)}")
        if not found:
            raise RuntimeError("no tile fits")
        times = in_turn({tile: call for tile, (call, _) in found.items()}, rep=10)
        return found[min(times, key=times.__getitem__)]

    kind = "tf32" if dtype == torch.float32 else name_of(dtype)
    return Case(
        f"matmul, {how}", f"{extents(m, n, k)} {orders}", kind, 2.0 * m * n * k, "TFLOP/s", build, _by_cublas(a, b),
        lambda c: (c[some].double() - expected).abs().max() / expected.abs().max(),
    )  # fmt: skip


def _by_cublas(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    if a.dtype.itemsize > 1:
        c = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
        return lambda: torch.mm(a, b, out=c)
    rows, cols, one = a.contiguous(), b.T.contiguous().T, torch.ones((), device="cuda")
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(rows, cols)  # pyright: ignore[reportPrivateImportUsage]
    return lambda: torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        rows, cols, one, one, out_dtype=torch.float16, use_fast_accum=True
    )


def products() -> Iterator[Case]:
    """Orders of operands that the instructions do not read themselves; fp16 through pointers in many sizes."""
    for how in ("pointers", "descriptors"):
        wide, tall = WIDE[how], TALL[how]
        for orders in ("rc", "rr", "cc", "cr"):
            yield product(torch.float32, 4096, 4096, 4096, orders, wide, how)
        for orders in ("rc", "rr", "cc", "cr"):
            yield product(torch.float8_e4m3fn, 8192, 8192, 8192, orders, tall, how)
        for orders in ("rc", "rr", "cr"):
            yield product(torch.int8, 8192, 8192, 8192, orders, tall, how)
    for orders in ("rr", "rc"):
        for size in (8192, 4096, 2048, 4000):
            yield product(torch.float16, size, size, size, orders, LARGE)
        for size in (1024, 512):
            yield product(torch.float16, size, size, size, orders, SMALL)
        yield product(torch.float16, 8192, 8192, 512, orders, LARGE)
        yield product(torch.float16, 16, 8192, 8192, orders, FLAT)
