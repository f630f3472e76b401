"""A program about torch's tensors: strict pyright has nothing to say to it where torch is installed."""

from typing import Any

import torch

import tessera
import tessera.language as tl


@tessera.jit
def twice(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * 2, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int, ...]:
    return (tessera.cdiv(meta["n"], meta["BLOCK"]),)


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    twice[grid](x, out, x.numel(), BLOCK=8)
    twice[(tessera.cdiv(x.shape[0], 8),)](x, out, n=x.shape[0], BLOCK=8)
    return out


x = torch.ones(8)
assert torch.equal(doubled(x), x * 2)
