"""A program with types where strict checkers want them: they have nothing to say to it either."""
# mypy: disallow-untyped-defs, disallow-untyped-calls, disallow-untyped-decorators
# mypy: disallow-any-generics, warn-return-any, warn-unused-ignores

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
import tessera.language as tl

OFFSET = tl.constexpr(4)


@tessera.jit
def scaled(x: tl.tensor, by: tl.constexpr = 2) -> tl.tensor:
    return tl.maximum(x * by, 0)


@tessera.jit
def add(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = scaled(tl.load(x_ptr + i, mask=mask)) + OFFSET
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(BLOCK // 4):
        acc += x * k
    for k in tl.static_range(4):
        acc = tl.where(mask, acc + k, 0.0)
    for step in tl.range(0, n, BLOCK, num_stages=2):
        acc += step
    tl.device_print("total", acc.sum())
    tl.static_assert(BLOCK >= 4, "a tile of four or more")
    tl.store(out_ptr + i, acc.to(tl.float32), mask=mask)


CONFIGS = [tessera.Config({"BLOCK": size}, num_warps=1) for size in (4, 8)]


@tessera.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["out_ptr"])
@tessera.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@tessera.jit(do_not_specialize=["n"])
def tuned(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr, EVEN: tl.constexpr) -> None:
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    return (tessera.cdiv(meta["n"], meta["BLOCK"]),)


Grid = Callable[[dict[str, Any]], tuple[int, ...]]
halves: Grid = lambda meta: (tessera.cdiv(meta["n"], 2 * meta["BLOCK"]), 2)

x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
add[(2,)](x, out, 8, BLOCK=4)
add[grid](x, out, 8, BLOCK=4, num_warps=2)
tuned[grid](x, out, 8)
print(tuned.best_config.kwargs["BLOCK"], tessera.knobs.runtime.debug)
compiled = add.warmup(x, out, 8, BLOCK=4, grid=lambda meta: (meta["n"] // meta["BLOCK"],))
print(compiled.asm["llir"], compiled.metadata.num_warps, tessera.testing.do_bench(lambda: None))
report = add.explain(x, out, 8, BLOCK=4, grid=lambda meta: (meta["n"] // meta["BLOCK"],))
print(report.roofline.predicted, [remark.remedy for remark in report.remarks], report.json())
with tessera.profile() as times:
    add[halves](x, out, 8, BLOCK=4)
times.save("times.json")
