"""Products whose operands are transposed in shared memory."""

from __future__ import annotations

from typing import Any

import tessera
import tessera.language as tl
from tests.unit.tensor_maps_kit import built


@tessera.jit
def columns_by_rows(a, b, c, tiles, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        acc = tl.zeros((BM, BN), tl.int32)
        for k in range(0, K, BK):
            acc = tl.dot(a.load([k, tile * BM]).T, b.load([k, 0]), acc)
        c.store([tile * BM, 0], acc)


def transposed_product(rows: int, cols: int) -> Any:
    kind = "tensordesc<i8[{}, {}]>".format
    signature = {"a": kind(64, rows), "b": kind(64, cols), "c": f"tensordesc<i32[{rows}, {cols}]>"}
    signature |= {"tiles": "i32", "K": "i32"}
    constants: dict[str, Any] = {"BM": rows, "BN": cols, "BK": 64}
    return built(columns_by_rows, signature, constants, "simt", num_warps=8, num_stages=3)
