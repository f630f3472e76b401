"""Products of matrices in the forms that models need them; `tessera` may be Triton."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from untuned_cases.kit import DEVICE, Problem, Problems, empty, normal, tiles

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor as TensorDescriptor  # for launches


@tessera.jit
def gated(
    x_ptr, w_ptr, v_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GM: tl.constexpr,
):  # fmt: skip
    """silu(x @ w) * (x @ v)"""
    pid = tl.program_id(0)
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    first = pid // (GM * num_n) * GM
    rows = min(num_m - first, GM)
    pid_m = first + (pid % (GM * num_n)) % rows
    pid_n = (pid % (GM * num_n)) // rows
    offs_m = (pid_m * BM + tl.arange(0, BM)) % M
    offs_n = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    w_ptrs = w_ptr + offs_k[:, None] * N + offs_n[None, :]
    v_ptrs = v_ptr + offs_k[:, None] * N + offs_n[None, :]
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(x_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        w = tl.load(w_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        v = tl.load(v_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        gate = tl.dot(x, w, gate)
        up = tl.dot(x, v, up)
        x_ptrs += BK
        w_ptrs += BK * N
        v_ptrs += BK * N
    y = (gate * tl.sigmoid(gate) * up).to(tl.float16)
    at_m = pid_m * BM + tl.arange(0, BM)
    at_n = pid_n * BN + tl.arange(0, BN)
    mask = (at_m[:, None] < M) & (at_n[None, :] < N)
    tl.store(y_ptr + at_m[:, None] * N + at_n[None, :], y, mask=mask)


@tessera.jit
def gated_descriptors(
    x_desc, w_desc, v_desc, y_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = x_desc.load([m, k])
        gate = tl.dot(x, w_desc.load([n, k]).T, gate)
        up = tl.dot(x, v_desc.load([n, k]).T, up)
    y_desc.store([m, n], (gate * tl.sigmoid(gate) * up).to(tl.float16))


@tessera.jit
def experts(
    a_ptr, b_ptr, c_ptr, order_ptr, expert_ptr, weight_ptr, N, K, count, TOP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GM: tl.constexpr,
):  # fmt: skip
    """c[i] = a[i // TOP] @ b[expert of i].T, for the i of `order` (BM of one expert to a tile), times a weight."""
    pid = tl.program_id(0)
    num_m = tl.num_programs(0) // tl.cdiv(N, BN)
    num_n = tl.cdiv(N, BN)
    first = pid // (GM * num_n) * GM
    rows = min(num_m - first, GM)
    pid_m = first + (pid % (GM * num_n)) % rows
    pid_n = (pid % (GM * num_n)) // rows
    token = tl.load(order_ptr + pid_m * BM + tl.arange(0, BM))
    valid = token < count
    expert = tl.load(expert_ptr + pid_m).to(tl.int64)
    offs_n = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (token[:, None] // TOP) * K + offs_k[None, :]
    b_ptrs = b_ptr + expert * N * K + offs_n[None, :] * K + offs_k[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=valid[:, None] & (offs_k[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += BK
    acc = acc * tl.load(weight_ptr + token, mask=valid, other=0)[:, None]
    at_n = pid_n * BN + tl.arange(0, BN)
    mask = valid[:, None] & (at_n[None, :] < N)
    tl.store(c_ptr + token[:, None] * N + at_n[None, :], acc.to(tl.float16), mask=mask)


@tessera.jit
def grouped(
    a_ptr, b_ptr, c_ptr, starts_ptr, sizes_ptr, strides_ptr, groups,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c = a @ b.T of several products of different sizes, whose tiles programs share: descriptors are made of what the
    kernel loads."""
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        m = tl.load(sizes_ptr + 3 * g)
        n = tl.load(sizes_ptr + 3 * g + 1)
        k = tl.load(sizes_ptr + 3 * g + 2)
        across = tl.cdiv(n, BN)
        count = tl.cdiv(m, BM) * across
        if tile >= last and tile < last + count:
            lda = tl.load(strides_ptr + 3 * g)
            ldb = tl.load(strides_ptr + 3 * g + 1)
            ldc = tl.load(strides_ptr + 3 * g + 2)
            a = a_ptr + tl.load(starts_ptr + 3 * g)
            b = b_ptr + tl.load(starts_ptr + 3 * g + 1)
            c = c_ptr + tl.load(starts_ptr + 3 * g + 2)
            a_desc = tl.make_tensor_descriptor(a, [m, k], [lda, 1], [BM, BK])
            b_desc = tl.make_tensor_descriptor(b, [n, k], [ldb, 1], [BN, BK])
            c_desc = tl.make_tensor_descriptor(c, [m, n], [ldc, 1], [BM, BN])
            while tile >= last and tile < last + count:
                i = (tile - last) // across * BM
                j = (tile - last) % across * BN
                acc = tl.zeros((BM, BN), dtype=tl.float32)
                for step in range(0, tl.cdiv(k, BK)):
                    x = a_desc.load([i, step * BK])
                    y = b_desc.load([j, step * BK])
                    acc += tl.dot(x, y.T)
                c_desc.store([i, j], acc.to(tl.float16))
                tile += tl.num_programs(0)
        last += count


@tessera.jit
def batched(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Of small matrices, one program a tile of one of them."""
    z = tl.program_id(2)
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        at_k = k + offs_k
        a = tl.load(a_ptr + z * M * K + offs_m[:, None] * K + at_k[None, :],
                    mask=(offs_m[:, None] < M) & (at_k[None, :] < K), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + z * K * N + at_k[:, None] * N + offs_n[None, :],
                    mask=(at_k[:, None] < K) & (offs_n[None, :] < N), other=0.0)  # fmt: skip
        acc += tl.dot(a, b)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + z * M * N + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16), mask)


@tessera.jit
def turned(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GM: tl.constexpr,
):  # fmt: skip
    """a.T @ b for a [K, M]: the gradient of a linear layer's weights."""
    pid_m, pid_n = tl.swizzle2d(
        tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), GM
    )
    offs_m = pid_m * BM + tl.arange(0, BM)
    offs_n = pid_n * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_k[:, None] * M + offs_m[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(a_ptrs)
        b = tl.load(b_ptrs)
        acc = tl.dot(tl.trans(a), b, acc)
        a_ptrs += BK * M
        b_ptrs += BK * N
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16))


@tessera.jit
def split_k(
    a_ptr, b_ptr, c_ptr, M, N, K, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    part = tl.program_id(1)
    num_n = tl.cdiv(N, BN)
    offs_m = pid // num_n * BM + tl.arange(0, BM)
    offs_n = pid % num_n * BN + tl.arange(0, BN)
    offs_k = part * BK + tl.arange(0, BK)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, tl.cdiv(K, BK * SPLIT)):
        acc += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs))
        a_ptrs += BK * SPLIT
        b_ptrs += BK * SPLIT * N
    tl.atomic_add(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc, sem="relaxed")


NAMES = "BM BN BK num_warps num_stages"
WIDE = tiles(
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
    (128, 128, 64, 4, 3),
    (128, 128, 32, 4, 4),
    names=NAMES,
)
TWO = tiles((128, 128, 64, 8, 3), (128, 64, 64, 4, 3), (128, 128, 32, 8, 4), names=NAMES)
SMALL = tiles((64, 64, 32, 4, 3), (128, 128, 32, 8, 3), (128, 64, 64, 4, 2), names=NAMES)


def case(
    what: str,
    shape: Any,
    work: float,
    configs: Any,
    launch: Any,
    found: Any,
    wanted: Any,
    **calls: Any,
) -> Problem:
    return Problem(
        f"matmul, {what}", shape, "fp16", work, "TFLOP/s", configs, launch, [found], wanted,
        {name.replace("_", " "): call for name, call in calls.items()} if DEVICE == "cuda" else {},
    )  # fmt: skip


def two_products(what: str, small: bool, desc: bool) -> Problem:
    M, N, K = (256, 256, 256) if small else (4096, 11008, 4096)
    x, y = normal(M, K), empty(M, N)
    w, v = (normal(N, K, scale=K**-0.5) if desc else normal(K, N, scale=K**-0.5) for _ in range(2))

    def launch(kernels: Any, config: Any) -> Any:
        bm, bn, bk = (config[n] for n in ("BM", "BN", "BK"))
        if not desc:
            grid = (-(-M // bm) * -(-N // bn),)
            return lambda: kernels.gated[grid](x, w, v, y, M, N, K, GM=8, **config)
        maps = [
            kernels.TensorDescriptor.from_tensor(t, [rows, cols])
            for t, rows, cols in ((x, bm, bk), (w, bn, bk), (v, bn, bk), (y, bm, bn))
        ]
        return lambda: kernels.gated_descriptors[(M // bm, N // bn)](*maps, K, **config)

    left, right = (w.T, v.T) if desc else (w, v)
    return case(
        what, f"{M}x{N}x{K}", 4.0 * M * N * K, TWO, launch, y[-128:],
        lambda: [F.silu(x[-128:].float() @ left.float()) * (x[-128:].float() @ right.float())],
        cuBLAS_and_silu=lambda: F.silu(x @ left) * (x @ right),
    )  # fmt: skip


def of_experts(what: str, small: bool, tokens: int) -> Problem:
    E, TOP, N, K = (4, 2, 256, 256) if small else (8, 2, 4096, 2048)
    a, b, weight = normal(tokens, K), normal(E, N, K, scale=K**-0.5), normal(tokens * TOP).abs()
    chosen = torch.rand(tokens, E, device=DEVICE).topk(TOP, -1).indices.flatten()
    c = empty(tokens * TOP, N)

    def launch(kernels: Any, config: Any) -> Any:
        bm, total = config["BM"], tokens * TOP
        order, owner = [], []
        for e in range(E):
            mine = torch.nonzero(chosen == e).flatten().int()
            blocks = -(-len(mine) // bm)
            order.append(F.pad(mine, (0, blocks * bm - len(mine)), value=total))
            owner += [e] * blocks
        ordered, owners = torch.cat(order), torch.tensor(owner, dtype=torch.int32, device=DEVICE)
        grid = (len(owner) * -(-N // config["BN"]),)
        return lambda: kernels.experts[grid](
            a, b, c, ordered, owners, weight, N, K, total, TOP, GM=8, **config
        )

    def wanted() -> Any:
        some = range(tokens * TOP - 64, tokens * TOP)
        return [
            torch.stack(
                [(b[chosen[i]].float() @ a[i // TOP].float()) * weight[i].float() for i in some]
            )
        ]

    configs = (
        WIDE
        if tokens > 64
        else tiles((16, 128, 64, 4, 4), (16, 64, 128, 4, 4), (64, 64, 64, 4, 3), names=NAMES)
    )
    return case(
        what, f"{tokens}x{E}x{N}x{K}", 2.0 * tokens * TOP * N * K, configs, launch, c[-64:], wanted
    )


def of_groups(what: str, small: bool, odd: int) -> Problem:
    """`odd`: by how much the depth is short of a multiple of 16 bytes; rows are padded to one."""
    unit = 64 if small else 1024
    sizes = [(i * unit, 2 * unit, 4 * unit - odd) for i in (1, 2, 3, 4)]
    strides = [(4 * unit, 4 * unit, 2 * unit)] * len(sizes)
    rows = [sum(size[0] for size in sizes[:g]) for g in range(len(sizes) + 1)]
    starts = [
        (4 * unit * rows[g], 8 * unit * unit * g, 2 * unit * rows[g]) for g in range(len(sizes))
    ]
    a, b = normal(rows[-1], 4 * unit), normal(len(sizes), 2 * unit, 4 * unit)
    c = empty(rows[-1], 2 * unit)
    numbers = [
        torch.tensor(starts, device=DEVICE),
        *(torch.tensor(t, dtype=torch.int32, device=DEVICE) for t in (sizes, strides)),
    ]

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.grouped[(132,)](a, b, c, *numbers, len(sizes), **config)

    def wanted() -> Any:
        depth = sizes[0][2]
        parts = [a[rows[g] : rows[g + 1], :depth].float() for g in range(len(sizes))]
        return [torch.cat([x @ y[:, :depth].float().T for x, y in zip(parts, b, strict=True)])]

    flops = sum(2.0 * m * n * k for m, n, k in sizes)
    of = f"{len(sizes)}x{unit}x{2 * unit}x{sizes[0][2]}"
    return case(what, of, flops, WIDE, launch, c, wanted)


def small_batches(what: str, small: bool, size: int, depth: int) -> Problem:
    B = 4 if small else 4096 * 64 // size
    a, b, c = normal(B, size, depth), normal(B, depth, size), empty(B, size, size)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (-(-size // config["BM"]), -(-size // config["BN"]), B)
        return lambda: kernels.batched[grid](a, b, c, size, size, depth, **config)

    return case(
        what, f"{B}x{size}x{size}x{depth}", 2.0 * B * size * size * depth, SMALL, launch, c,
        lambda: [a.float() @ b.float()], cuBLAS=lambda: a @ b,
    )  # fmt: skip


def of_weights(what: str, small: bool) -> Problem:
    M, N, K = (256, 256, 256) if small else (4096, 4096, 8192)
    a, b, c = normal(K, M), normal(K, N), empty(M, N)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (M // config["BM"], N // config["BN"])
        return lambda: kernels.turned[grid](a, b, c, M, N, K, GM=8, **config)

    return case(
        what, f"{M}x{N}x{K}", 2.0 * M * N * K, WIDE, launch, c, lambda: [a.float().T @ b.float()],
        cuBLAS=lambda: a.T @ b,
    )  # fmt: skip


def in_parts(what: str, small: bool) -> Problem:
    M, N, K, SPLIT = (128, 256, 1024, 2) if small else (256, 512, 32768, 32)
    a, b, c = normal(M, K), normal(K, N), empty(M, N, dtype=torch.float32)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (M // config["BM"] * (N // config["BN"]), SPLIT)

        def call() -> Any:
            c.zero_()
            return kernels.split_k[grid](a, b, c, M, N, K, SPLIT, **config)

        return call

    configs = tiles((64, 64, 64, 4, 4), (128, 128, 64, 4, 3), (128, 64, 64, 4, 4), names=NAMES)
    return case(
        what, f"{M}x{N}x{K}", 2.0 * M * N * K, configs, launch, c, lambda: [a.float() @ b.float()],
        cuBLAS=lambda: a @ b,
    )  # fmt: skip


def problems(small: bool) -> Problems:
    yield "matmul, gated, pointers", partial(two_products, "gated, pointers", small, False)
    yield "matmul, gated, descriptors", partial(two_products, "gated, descriptors", small, True)
    for what, tokens in (
        ("experts, many tokens", 200 if small else 8192),
        ("experts, few tokens", 48),
    ):
        yield f"matmul, {what}", partial(of_experts, what, small, tokens)
    for what, odd in (("groups, descriptors", 0), ("groups, descriptors, odd depth", 4)):
        yield f"matmul, {what}", partial(of_groups, what, small, odd)
    for size, depth in ((64, 64), (128, 128), (100, 80)):
        yield (
            f"matmul, batched {size}x{depth}",
            partial(small_batches, "batched", small, size, depth),
        )
    yield "matmul, a transposed", partial(of_weights, "a transposed", small)
    yield "matmul, split-K", partial(in_parts, "split-K", small)
