"""Attention forward as users write it, with all that models put between the two products; `tessera` may be Triton."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from untuned_cases.kit import DEVICE, LOG2_E, Problem, Problems, empty, normal, tiles

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor as TensorDescriptor  # for launches


@tessera.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@tessera.jit
def forward(
    q_ptr, k_ptr, v_ptr, bias_ptr, slope_ptr, out_ptr, scale, S, stride_h, stride_m,
    GROUP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, V_TURNED: tl.constexpr,
):  # fmt: skip
    """BM queries of one head; GROUP heads share keys. V_TURNED: values are [dim, length]."""
    start_m = tl.program_id(0)
    head = tl.program_id(1)
    offs_m = start_m * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    offs_d = tl.arange(0, BD)
    q_ptrs = q_ptr + head * stride_h + offs_m[:, None] * stride_m + offs_d[None, :]
    k_ptrs = k_ptr + head // GROUP * stride_h + offs_n[:, None] * stride_m + offs_d[None, :]
    if V_TURNED:
        v_ptrs = v_ptr + head // GROUP * stride_h + offs_n[:, None] + offs_d[None, :] * S
    else:
        v_ptrs = v_ptr + head // GROUP * stride_h + offs_n[:, None] * stride_m + offs_d[None, :]
    if D == BD:
        q = tl.load(q_ptrs)
    else:
        q = tl.load(q_ptrs, mask=offs_d[None, :] < D, other=0.0)
    m_i = tl.full([BM], -float("inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    lo = 0
    hi = S
    if CAUSAL:
        hi = (start_m + 1) * BM
    if WINDOW > 0:
        lo = tl.maximum(start_m * BM - WINDOW, 0) // BN * BN
    k_ptrs += lo * stride_m
    v_ptrs += lo if V_TURNED else lo * stride_m
    if ALIBI:
        slope = tl.load(slope_ptr + head)
    for start_n in range(lo, hi, BN):
        if D == BD:
            k = tl.load(k_ptrs)
        else:
            k = tl.load(k_ptrs, mask=offs_d[None, :] < D, other=0.0)
        qk = tl.dot(q, tl.trans(k)) * scale
        if CAP > 0:
            qk = CAP * tanh(qk / CAP)
        if BIAS:
            bias_ptrs = bias_ptr + (head * S + offs_m[:, None]) * S + start_n + offs_n[None, :]
            qk += tl.load(bias_ptrs).to(tl.float32)
        if ALIBI:
            qk += slope * (start_n + offs_n[None, :] - offs_m[:, None])
        if CAUSAL:
            qk = tl.where(offs_m[:, None] >= start_n + offs_n[None, :], qk, -1.0e30)
        if WINDOW > 0:
            qk = tl.where(offs_m[:, None] - (start_n + offs_n[None, :]) < WINDOW, qk, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp2((qk - m_new[:, None]) * 1.44269504)
        alpha = tl.exp2((m_i - m_new) * 1.44269504)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        if D == BD:
            v = tl.load(v_ptrs)
        else:
            v = tl.load(v_ptrs, mask=offs_d[None, :] < D, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_new
        k_ptrs += BN * stride_m
        v_ptrs += BN if V_TURNED else BN * stride_m
    acc = acc / l_i[:, None]
    out_ptrs = out_ptr + head * stride_h + offs_m[:, None] * stride_m + offs_d[None, :]
    if D == BD:
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty))
    else:
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=offs_d[None, :] < D)


@tessera.jit
def inner(
    acc, l_i, m_i, q, k_desc, v_desc, row, lo, hi, first, scale,
    BM: tl.constexpr, BN: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = first + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    for start_n in range(lo, hi, BN):
        k = k_desc.load([row + start_n, 0])
        qk = tl.dot(q, k.T)
        if MASK:
            qk = qk * scale + tl.where(offs_m[:, None] >= start_n + offs_n[None, :], 0, -1.0e6)
            m_new = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_new[:, None]
        else:
            m_new = tl.maximum(m_i, tl.max(qk, 1) * scale)
            qk = qk * scale - m_new[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_new)
        l_new = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([row + start_n, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + l_new
        m_i = m_new
    return acc, l_i, m_i


@tessera.jit
def forward_descriptors(
    q_desc, k_desc, v_desc, out_desc, scale, S, GROUP: tl.constexpr, BD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Rows of all heads stand one below the other; the blocks on the diagonal have a loop of their own."""
    first = tl.program_id(0) * BM
    head = tl.program_id(1)
    row = head // GROUP * S
    q = q_desc.load([head * S + first, 0])
    m_i = tl.zeros([BM], tl.float32) - float("inf")
    l_i = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    whole = first if CAUSAL else S
    acc, l_i, m_i = inner(acc, l_i, m_i, q, k_desc, v_desc, row, 0, whole, first, scale, BM, BN, False)  # fmt: skip
    if CAUSAL:
        acc, l_i, m_i = inner(
            acc, l_i, m_i, q, k_desc, v_desc, row, first, first + BM, first, scale, BM, BN, True
        )
    out_desc.store([head * S + first, 0], (acc / l_i[:, None]).to(out_desc.dtype))


@tessera.jit
def paged(
    q_ptr, k_ptr, v_ptr, table_ptr, out_ptr, scale, S, Q, pages,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The last Q of S tokens of each sequence; keys are [page, PAGE, key head, dim]. A tile's rows are GROUP heads of
    BM // GROUP tokens."""
    sequence = tl.program_id(1)
    key_head = tl.program_id(2)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    token = rows // GROUP
    head = key_head * GROUP + rows % GROUP
    offs_d = tl.arange(0, D)
    offs_n = tl.arange(0, BN)
    inside = token < Q
    at = ((sequence * Q + token) * H + head)[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + at, mask=inside[:, None], other=0.0)
    m_i = tl.full([BM], -float("inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    position = S - Q + token
    last = tl.minimum(S, S - Q + (tl.program_id(0) * BM + BM - 1) // GROUP + 1)
    for start_n in range(0, last, BN):
        n = start_n + offs_n
        page = tl.load(table_ptr + sequence * pages + n // PAGE, mask=n < S, other=0)
        place = ((page * PAGE + n % PAGE) * (H // GROUP) + key_head) * D
        k = tl.load(k_ptr + place[None, :] + offs_d[:, None], mask=n[None, :] < S, other=0.0)
        v = tl.load(v_ptr + place[:, None] + offs_d[None, :], mask=n[:, None] < S, other=0.0)
        qk = tl.dot(q, k) * scale
        qk = tl.where(n[None, :] <= position[:, None], qk, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(qk - m_new[:, None])
        acc = acc * alpha[:, None]
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_new
    tl.store(out_ptr + at, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), mask=inside[:, None])


TILES = {
    64: tiles((128, 128, 8, 3), (128, 64, 4, 3), (64, 128, 4, 3), (128, 64, 8, 4)),
    128: tiles((128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 2), (64, 64, 4, 3)),
    256: tiles((128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 3)),
}


def width(dim: int) -> int:
    return 1 << (dim - 1).bit_length()


def scores_mask(S: int, causal: bool, window: int) -> torch.Tensor | None:
    """Of what is seen; None: all."""
    distance = torch.arange(S, device=DEVICE)[:, None] - torch.arange(S, device=DEVICE)[None, :]
    if not causal:
        return None
    return (distance >= 0) & (distance < window) if window else distance >= 0


def exact(q: Any, k: Any, v: Any, seen: Any = None, cap: float = 0.0, extra: Any = None) -> Any:
    """Attention of [heads, length, dim] in fp32."""
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if extra is not None:
        scores = scores + extra.float()
    if seen is not None:
        scores = scores.masked_fill(~seen, -float("inf"))
    return scores.softmax(-1) @ v.float()


def library(q: Any, k: Any, v: Any, causal: bool, bias: Any, group: int) -> dict[str, Any]:
    """cuDNN's kernel, or whatever torch takes where an array of biases is added."""
    batch = [t[None] for t in (q, k, v)]
    options = {"is_causal": causal, "enable_gqa": group > 1}
    if bias is not None:
        options["attn_mask"] = bias[None]

    def cudnn() -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return F.scaled_dot_product_attention(*batch, **options)

    return {"cuDNN": cudnn}


def by_pointers(
    what: str, small: bool, D: int, causal: bool = False, window: int = 0, cap: float = 0.0,
    bias: bool = False, alibi: bool = False, group: int = 1, fp8: bool = False,
) -> Problem:  # fmt: skip
    H, S = (max(2, group), 256) if small else ((16 if bias else 64), 4096)
    kind = torch.float8_e4m3fn if fp8 else torch.float16
    q, k, v = (normal(heads, S, D, dtype=kind) for heads in (H, H // group, H // group))
    v_given = v.transpose(1, 2).contiguous() if fp8 else v
    extra, slopes = normal(H, S, S) if bias else q, 2.0 ** -torch.arange(1, H + 1, device=DEVICE).float()  # fmt: skip
    out = empty(H, S, D)
    scale = D**-0.5
    flags = {
        "GROUP": group, "D": D, "BD": width(D), "CAUSAL": causal, "WINDOW": window, "CAP": cap,
        "BIAS": bias, "ALIBI": alibi, "V_TURNED": fp8,
    }  # fmt: skip

    def launch(kernels: Any, config: Any) -> Any:
        grid = (S // config["BM"], H)
        return lambda: kernels.forward[grid](
            q, k, v_given, extra, slopes, out, scale, S, S * D, D, **flags, **config
        )

    def wanted() -> Any:
        at = torch.arange(S, device=DEVICE)
        distance = at[None, :] - at[:, None]
        added = extra[-1] if bias else slopes[-1] * distance if alibi else None
        return [exact(q[-1], k[-1], v[-1], scores_mask(S, causal, window), cap, added)]

    plain = not (window or cap or alibi or fp8)
    area = S * window if window else S * S / (2 if causal else 1)
    return Problem(
        f"attention, {what}", f"{H}x{S}x{D}", "fp8" if fp8 else "fp16", 4.0 * H * area * D, "TFLOP/s",
        TILES[width(D)], launch, [out[-1]], wanted,
        library(q, k, v, causal, extra if bias else None, group) if plain and DEVICE == "cuda" else {},
        0.08 if fp8 else 0.01,
    )  # fmt: skip


def by_descriptors(what: str, small: bool, D: int, causal: bool = False, group: int = 1) -> Problem:
    H, S = (max(2, group), 256) if small else (64, 4096)
    q, k, v = (normal(heads, S, D) for heads in (H, H // group, H // group))
    out = empty(H, S, D)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (S // config["BM"], H)
        q_desc, k_desc, v_desc, out_desc = (
            kernels.TensorDescriptor.from_tensor(t.view(-1, D), [config[rows], width(D)])
            for t, rows in ((q, "BM"), (k, "BN"), (v, "BN"), (out, "BM"))
        )
        scale = D**-0.5 * LOG2_E
        return lambda: kernels.forward_descriptors[grid](
            q_desc, k_desc, v_desc, out_desc, scale, S, group, width(D), CAUSAL=causal, **config
        )

    area = S * S / (2 if causal else 1)
    # The loops meet at the first row: at a multiple of the keys' blocks.
    configs = [c for c in TILES[width(D)] if not causal or c["BM"] % c["BN"] == 0]
    return Problem(
        f"attention, {what}", f"{H}x{S}x{D}", "fp16", 4.0 * H * area * D, "TFLOP/s", configs,
        launch, [out[-1]], lambda: [exact(q[-1], k[-1], v[-1], scores_mask(S, causal, 0))],
        library(q, k, v, causal, None, group) if DEVICE == "cuda" else {},
    )  # fmt: skip


def by_pages(what: str, small: bool, decode: bool) -> Problem:
    B, K, G, D, PAGE = (2, 2, 8, 64, 16) if small else (32 if decode else 4, 8, 8, 128, 16)
    S, Q = (200, 1 if decode else 40) if small else (4096, 1 if decode else 2048)
    pages = -(-S // PAGE)
    k, v = (normal(B * pages, PAGE, K, D) for _ in range(2))
    table = torch.randperm(B * pages, device=DEVICE).to(torch.int32).view(B, pages)
    q, out = normal(B, Q, K * G, D), empty(B, Q, K * G, D)
    scale = D**-0.5 * LOG2_E

    def launch(kernels: Any, config: Any) -> Any:
        grid = (-(-Q * G // config["BM"]), B, K)
        return lambda: kernels.paged[grid](
            q, k, v, table, out, scale, S, Q, pages, K * G, G, D, PAGE, **config
        )

    def wanted() -> Any:
        keys, values = (t[table[-1].long(), :, -1].reshape(-1, D)[:S] for t in (k, v))
        at = torch.arange(S, device=DEVICE)
        return [exact(q[-1, :, -1], keys, values, at[None, :] <= at[S - Q :, None])]

    configs = tiles((16, 64, 4, 3), (16, 128, 4, 3), (16, 32, 2, 4)) if decode else TILES[128]
    area = Q * (S - (Q - 1) / 2)
    work, unit = (
        (4.0 * B * K * S * D, "GB/s") if decode else (4.0 * B * K * G * area * D, "TFLOP/s")
    )
    return Problem(
        f"attention, {what}", f"{B}x{K * G}x{Q}x{S}x{D}", "fp16", work, unit, configs, launch,
        [out[-1, :, -1]], wanted,
    )  # fmt: skip


def problems(small: bool) -> Problems:
    whole_heads = {"pointers": by_pointers, "descriptors": by_descriptors}
    for D, (how, make) in itertools.product((64, 96, 128, 256), whole_heads.items()):
        yield f"attention, {how}, d{D}", partial(make, how, small, D)
    for D, (how, make) in itertools.product((64, 128), whole_heads.items()):
        yield f"attention, causal, {how}, d{D}", partial(make, f"causal, {how}", small, D, True)
    for D in (64, 128):
        yield f"attention, bias, d{D}", partial(by_pointers, "bias", small, D, bias=True)
    for what, options in (
        ("ALiBi, causal", {"alibi": True}), ("soft cap, causal", {"cap": 30.0}),
        ("window, causal", {"window": 64 if small else 512}), ("8 queries a key, causal", {"group": 8}),
    ):  # fmt: skip
        yield f"attention, {what}", partial(by_pointers, what, small, 128, True, **options)
    what = "8 queries a key, causal, descriptors"
    yield f"attention, {what}", partial(by_descriptors, what, small, 128, True, 8)
    for what, decode in (("pages", False), ("pages, one query", True)):
        yield f"attention, {what}", partial(by_pages, what, small, decode)
    for D in (64, 128):
        yield f"attention, fp8, d{D}", partial(by_pointers, "fp8", small, D, fp8=True)
