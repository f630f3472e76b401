"""A program that is right: type checkers have nothing to say to it."""

from typing import Any

import numpy as np

import tessera
import tessera.language as tl


@tessera.jit
def helper(x):
    return x * 2


@tessera.aggregate
class Mean:
    total: tl.tensor
    count: tl.constexpr

    @tessera.jit
    def plus(self, x):
        return Mean(self.total + x, self.count + 1)


@tessera.jit
def softmax(out_ptr, in_ptr, n, stride, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(in_ptr + row * stride + i, mask=mask, other=-float("inf"))
    for _ in range(tl.num_programs(0)):
        x = helper(x) * 0.5
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    total = tl.sum(e, 0)
    tl.store(out_ptr + row * stride + i, (e / total).to(tl.float32), mask=mask)
    if EVEN:
        acc = tl.zeros((16, BLOCK), dtype=tl.float32)
        acc = tl.dot(tl.trans(acc), acc, input_precision="ieee")
        d = tl.make_tensor_descriptor(in_ptr, [n, n], [n, 1], [16, BLOCK])
        acc += d.load([0, i.sum()]).to(tl.float32) + d.shape[0]
        d.store([0, 0], acc)
        half = acc.to(tl.float16).reshape(BLOCK, 16).trans() + acc.sum(axis=1, keep_dims=True)
        half = half.cumsum(0, reverse=True).sort(descending=True).T.permute(1, 0)[:, None]
        top, at = acc.max(1, return_indices=True)
        even, odd = tl.reshape(half, (BLOCK, 8, 2)).split()
        acc += even.exp().broadcast_to(16, BLOCK) - (odd < 3).to(tl.float32) * top.abs()
        at.atomic_add(1)
        acc += (acc != 0).to(tl.float32) + (acc == 0).to(tl.float32)
        total = x.reduce(0, helper) + x.softmax().gather(at, 0).cast(tl.int32).item()
        best, where = tl.max(acc, 1, return_indices=True)
        tl.device_print("best", best + where)
        at = tl.swizzle2d(i, row, 4, 4, 2)[0] + tl.expand_dims(i, (0, 2)).ravel()
        tl.store(out_ptr + at, Mean(tl.zeros((BLOCK,), tl.float32), 0).plus(total).total)


x, out = np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float32)
softmax[(4,)](out, x, 8, 8, BLOCK=8)
softmax[(4,)](out, x, n=8, stride=8, BLOCK=8, EVEN=True)
softmax[(4,)](out, x, 8, 8, BLOCK=8, num_warps=2, num_stages=1)
softmax[lambda args: (args["n"] // 2,)](out, x, 8, 8, BLOCK=8, debug="check")
tuned = tessera.autotune([tessera.Config({"BLOCK": 8}, num_warps=1)], key=["n"])(softmax)
tuned[(4,)](out, x, 8, 8)
print(tuned.best_config.kwargs["BLOCK"], tuned.best_config.num_warps)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    return (tessera.cdiv(meta["n"], meta["BLOCK"]),)


softmax[grid](out, x, 8, 8, BLOCK=8)
softmax[np.int64(4), 1](out, x, 8, 8, BLOCK=8)
softmax[[4]](out, x, 8, 8, BLOCK=8)
print(softmax.warmup(out, x, 8, 8, BLOCK=8, grid=(4,)).asm["llir"])
print(softmax.explain(out, x, 8, 8, BLOCK=8, grid=grid).remarks)
softmax.trace[(4,)](out, x, 8, 8, BLOCK=8).save("trace.html")
configured = tessera.jit(do_not_specialize=["n"])(softmax.fn)
report = softmax.explain(out, x, 8, 8, BLOCK=8, grid=grid)
print(report, report.roofline.predicted * 1e6, [line.source for line in report.lines])
timeline = softmax.trace(records=64)[(4,)](out, x, 8, 8, BLOCK=8)
print(
    timeline.roles, timeline.lost, [s.name for s in timeline.spans()], timeline.save("trace.html")
)
