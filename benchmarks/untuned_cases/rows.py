"""Norms, softmax and cross entropy that walk rows in one, two or three loops; `tessera` may be Triton."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from untuned_cases.kit import DEVICE, Problem, Problems, empty, normal, tiles, whole

import tessera
import tessera.language as tl


@tessera.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, N, eps, B: tl.constexpr):
    """Three loops: mean, variance, result."""
    x_ptr += tl.program_id(0) * N
    y_ptr += tl.program_id(0) * N
    total = tl.zeros([B], dtype=tl.float32)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        total += tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([B], dtype=tl.float32)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        mask = cols < N
        w = tl.load(w_ptr + cols, mask=mask)
        b = tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * rstd * w + b, mask=mask)


@tessera.jit
def rms_norm(x_ptr, y_ptr, w_ptr, N, eps, B: tl.constexpr):
    """Two loops: squares, result."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([B], dtype=tl.float32)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / N + eps)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        mask = cols < N
        x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
        tl.store(y_ptr + row * N + cols, (x * rstd * w).to(y_ptr.dtype.element_ty), mask=mask)


@tessera.jit
def softmax_three(x_ptr, y_ptr, N, B: tl.constexpr):
    """Maximum, sum, result."""
    row = tl.program_id(0)
    peak = -float("inf")
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf"))
        peak = tl.maximum(peak, tl.max(x.to(tl.float32), axis=0))
    total = 0.0
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - peak), axis=0)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        tl.store(y_ptr + row * N + cols, tl.exp(x - peak) / total, mask=cols < N)


@tessera.jit
def softmax_two(x_ptr, y_ptr, N, B: tl.constexpr):
    """A running maximum and sum of each column of blocks; result."""
    row = tl.program_id(0)
    peak = tl.full([B], -float("inf"), tl.float32)
    total = tl.zeros([B], tl.float32)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-1.0e30).to(tl.float32)
        higher = tl.maximum(peak, x)
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    top = tl.max(peak, axis=0)
    total = tl.sum(total * tl.exp(peak - top), axis=0)
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * N + cols, tl.exp(x - top) / total, mask=cols < N)


@tessera.jit
def cross_entropy(x_ptr, target_ptr, loss_ptr, N, B: tl.constexpr):
    """One loop: the running maximum and sum of a row."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    m = -float("inf")
    d = 0.0
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    tl.store(loss_ptr + row, m + tl.log(d) - tl.load(x_ptr + row * N + target).to(tl.float32))


@tessera.jit
def cross_entropy_gradient(x_ptr, target_ptr, loss_ptr, dx_ptr, N, B: tl.constexpr):
    """Two loops: the sum; the gradient of the logits."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    m = -float("inf")
    d = 0.0
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    tl.store(loss_ptr + row, m + tl.log(d) - tl.load(x_ptr + row * N + target).to(tl.float32))
    for off in range(0, N, B):
        cols = off + tl.arange(0, B)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        p = tl.exp(x - m) / d
        dx = tl.where(cols == target, p - 1.0, p)
        tl.store(dx_ptr + row * N + cols, dx, mask=cols < N)


BLOCKS = tiles((512, 4), (1024, 4), (2048, 8), (1024, 8), names="B num_warps")
ELEMENTS = 1 << 26


def arrays(small: bool, N: int) -> tuple[Any, Any, Any]:
    rows = 3 if small else ELEMENTS // N
    return normal(rows, N), empty(rows, N), rows


def case(
    what: str, rows: int, N: int, passes: float, launch: Any, found: Any, wanted: Any, call: Any
) -> Problem:
    """`passes`: how often an array of this size is read or written at least."""
    library = {"torch": call} if DEVICE == "cuda" else {}
    configs = [c for c in BLOCKS if c["B"] <= max(N, 512)]
    return Problem(
        what,
        f"{rows}x{N}",
        "fp16",
        passes * 2.0 * rows * N,
        "GB/s",
        configs,
        launch,
        found,
        wanted,
        library,
    )


def layer(small: bool, N: int) -> Problem:
    x, y, rows = arrays(small, N)
    w, b = normal(N), normal(N)

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.layer_norm[(rows,)](x, y, w, b, N, 1e-5, **config)

    return case(
        "layer norm in three loops", rows, N, 2, launch, [y],
        lambda: [F.layer_norm(x.float(), (N,), w.float(), b.float())], lambda: F.layer_norm(x, (N,), w, b),
    )  # fmt: skip


def rms(small: bool, N: int) -> Problem:
    x, y, rows = arrays(small, N)
    w = normal(N)

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.rms_norm[(rows,)](x, y, w, N, 1e-5, **config)

    return case(
        "RMS norm in two loops", rows, N, 2, launch, [y], lambda: [F.rms_norm(x.float(), (N,), w.float(), 1e-5)],
        lambda: F.rms_norm(x, (N,), w, 1e-5),
    )  # fmt: skip


def softmax(small: bool, N: int, loops: int) -> Problem:
    x, y, rows = arrays(small, N)

    def launch(kernels: Any, config: Any) -> Any:
        kernel = kernels.softmax_three if loops == 3 else kernels.softmax_two
        return lambda: kernel[(rows,)](x, y, N, **config)

    what = f"softmax in {'three' if loops == 3 else 'two'} loops"
    return case(
        what, rows, N, 2, launch, [y], lambda: [x.float().softmax(-1)], lambda: x.softmax(-1)
    )


def loss(small: bool, N: int, gradient: bool) -> Problem:
    x, dx, rows = arrays(small, N)
    target, out = whole(0, N, rows, dtype=torch.int64), empty(rows, dtype=torch.float32)

    def launch(kernels: Any, config: Any) -> Any:
        if gradient:
            return lambda: kernels.cross_entropy_gradient[(rows,)](x, target, out, dx, N, **config)
        return lambda: kernels.cross_entropy[(rows,)](x, target, out, N, **config)

    def wanted() -> Any:
        losses = F.cross_entropy(x.float(), target, reduction="none")
        if not gradient:
            return [losses]
        share = x.float().softmax(-1)
        share[torch.arange(rows, device=DEVICE), target] -= 1
        return [losses, share]

    what = "cross entropy with gradient in two loops" if gradient else "cross entropy in one loop"
    return case(
        what, rows, N, 2 if gradient else 1, launch, [out, dx] if gradient else [out], wanted,
        lambda: F.cross_entropy(x, target, reduction="none"),
    )  # fmt: skip


def problems(small: bool) -> Problems:
    for N in (512, 2048, 8192):
        yield f"layer norm in three loops, {N}", partial(layer, small, N)
        yield f"RMS norm in two loops, {N}", partial(rms, small, N)
        yield f"softmax in three loops, {N}", partial(softmax, small, N, 3)
        yield f"softmax in two loops, {N}", partial(softmax, small, N, 2)
        yield f"cross entropy in one loop, {N}", partial(loss, small, N, False)
        yield f"cross entropy with gradient in two loops, {N}", partial(loss, small, N, True)
