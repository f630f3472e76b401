"""Attention backward in two kernels, blocks by pointers or by descriptors; `tessera` may be Triton."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from untuned_cases.attention import exact, scores_mask
from untuned_cases.kit import DEVICE, LOG2_E, Problem, Problems, empty, normal, tiles

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor as TensorDescriptor  # for launches


@tessera.jit
def block(x, row, ROWS: tl.constexpr, D: tl.constexpr, DESC: tl.constexpr):
    """ROWS rows of an array of D columns."""
    if DESC:
        tile = x.load([row, 0])
    else:
        at = (row + tl.arange(0, ROWS))[:, None] * D + tl.arange(0, D)[None, :]
        tile = tl.load(x + at)
    return tile


@tessera.jit
def keys_and_values(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, S,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, DESC: tl.constexpr,
):  # fmt: skip
    """BN keys of one head: walks blocks of BM queries."""
    base = tl.program_id(1) * S
    first = tl.program_id(0) * BN
    offs_n = first + tl.arange(0, BN)
    k = block(k_ptr, base + first, BN, D, DESC)
    v = block(v_ptr, base + first, BN, D, DESC)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    start = first // BM * BM if CAUSAL else 0
    for m in range(start, S, BM):
        offs_m = m + tl.arange(0, BM)
        q = block(q_ptr, base + m, BM, D, DESC)
        lse = tl.load(lse_ptr + base + offs_m)
        qkT = tl.dot(k, tl.trans(q))
        pT = tl.math.exp2(qkT * (scale * 1.44269504) - lse[None, :])
        if CAUSAL:
            pT = tl.where(offs_m[None, :] >= offs_n[:, None], pT, 0.0)
        do = block(do_ptr, base + m, BM, D, DESC)
        dv += tl.dot(pT.to(tl.float16), do)
        delta = tl.load(delta_ptr + base + offs_m)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = pT * (dpT - delta[None, :])
        dk += tl.dot(dsT.to(tl.float16), q)
    at = (base + offs_n)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dv_ptr + at, dv.to(tl.float16))
    tl.store(dk_ptr + at, (dk * scale).to(tl.float16))


@tessera.jit
def queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, scale, S,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, DESC: tl.constexpr,
):  # fmt: skip
    """BM queries of one head: walks blocks of BN keys."""
    base = tl.program_id(1) * S
    first = tl.program_id(0) * BM
    offs_m = first + tl.arange(0, BM)
    q = block(q_ptr, base + first, BM, D, DESC)
    do = block(do_ptr, base + first, BM, D, DESC)
    lse = tl.load(lse_ptr + base + offs_m)[:, None]
    delta = tl.load(delta_ptr + base + offs_m)
    dq = tl.zeros([BM, D], tl.float32)
    end = first + BM if CAUSAL else S
    for n in range(0, end, BN):
        k = block(k_ptr, base + n, BN, D, DESC)
        v = block(v_ptr, base + n, BN, D, DESC)
        qk = tl.dot(q, tl.trans(k))
        p = tl.math.exp2(qk * (scale * 1.44269504) - lse)
        if CAUSAL:
            offs_n = n + tl.arange(0, BN)
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        dp = tl.dot(do, tl.trans(v)).to(tl.float32)
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(tl.float16), k)
    at = (base + offs_m)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq_ptr + at, (dq * scale).to(tl.float16))


CONFIGS = {
    64: tiles((64, 128, 8, 2), (64, 64, 4, 3), (128, 128, 8, 2), (64, 128, 4, 2)),
    128: tiles((64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 4, 3), (64, 128, 8, 3)),
}


def gradients(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Any:
    leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
    out = exact(leaves[0], leaves[1], leaves[2], scores_mask(q.shape[-2], causal, 0))
    return torch.autograd.grad(out, leaves, dout.float())


def library(q: Any, k: Any, v: Any, dout: Any, causal: bool) -> dict[str, Any]:
    leaves = [t[None].detach().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    return {"cuDNN": lambda: torch.autograd.grad(out, leaves, dout[None], retain_graph=True)}


def backward(what: str, small: bool, D: int, causal: bool, desc: bool) -> Problem:
    H, S = (2, 256) if small else (32, 4096)
    q, k, v, dout = (normal(H, S, D) for _ in range(4))
    dq, dk, dv = (empty(H, S, D) for _ in range(3))
    lse, delta = empty(H, S, dtype=torch.float32), empty(H, S, dtype=torch.float32)
    scale, seen = D**-0.5, scores_mask(S, causal, 0)
    for head in range(H):  # one at a time: scores are large
        scores = q[head].float() @ k[head].float().T * scale
        scores = scores if seen is None else scores.masked_fill(~seen, -float("inf"))
        lse[head] = scores.logsumexp(-1) * LOG2_E
        delta[head] = (scores.softmax(-1) @ v[head].float() * dout[head].float()).sum(-1)

    def launch(kernels: Any, config: Any) -> Any:
        bm, bn = config["BM"], config["BN"]

        def given(t: Any, rows: int) -> Any:
            return kernels.TensorDescriptor.from_tensor(t.view(-1, D), [rows, D]) if desc else t

        inputs = [given(t, rows) for t, rows in ((q, bm), (k, bn), (v, bn), (dout, bm))]
        options = {**config, "D": D, "CAUSAL": causal, "DESC": desc}

        def call() -> Any:
            saved, rest = (*inputs, lse, delta), (scale, S)
            return [
                kernels.keys_and_values[(S // bn, H)](*saved, dk, dv, *rest, **options),
                kernels.queries[(S // bm, H)](*saved, dq, *rest, **options),
            ]

        return call

    return Problem(
        f"attention backward, {what}", f"{H}x{S}x{D}", "fp16", 10.0 * H * S * S * D / (2 if causal else 1),
        "TFLOP/s", CONFIGS[D], launch, [dq[-1], dk[-1], dv[-1]],
        lambda: gradients(q[-1], k[-1], v[-1], dout[-1], causal),
        library(q, k, v, dout, causal) if DEVICE == "cuda" else {},
    )  # fmt: skip


def problems(small: bool) -> Problems:
    for D, causal, desc in itertools.product((64, 128), (False, True), (False, True)):
        what = "causal, " * causal + ("descriptors" if desc else "pointers")
        name = f"attention backward, {what}, d{D}"
        yield name, partial(backward, what, small, D, causal, desc)
