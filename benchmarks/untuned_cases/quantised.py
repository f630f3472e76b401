"""Products with weights of 4 and 8 bits that are widened in the loop; `tessera` may be Triton."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from untuned_cases.kit import DEVICE, Problem, Problems, empty, normal, tiles, whole

import tessera
import tessera.language as tl


@tessera.jit
def packed_words(
    a_ptr, b_ptr, s_ptr, z_ptr, c_ptr, M, N, K, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """b: eight int4 of a column in each int32, [K / 8, N]; scales [K / GROUP, N]; zeros packed along N."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + (offs_k[:, None] // 8) * N + offs_n[None, :]
    shifter = (offs_k % 8) * 4
    zeros_shifter = (offs_n % 8) * 4
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_m[:, None] < M, other=0.0)
        b = tl.load(b_ptrs)
        g = k * BK // GROUP
        scales = tl.load(s_ptr + g * N + offs_n)
        zeros = (tl.load(z_ptr + g * (N // 8) + offs_n // 8) >> zeros_shifter) & 0xF
        b = (b >> shifter[:, None]) & 0xF
        b = (b - zeros[None, :]).to(tl.float16) * scales[None, :]
        acc += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += (BK // 8) * N
    mask = offs_m[:, None] < M
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16), mask=mask)


@tessera.jit
def packed_bytes(
    a_ptr, b_ptr, s_ptr, c_ptr, M, N, K, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """b: two int4 of a column in each int8, [K / 2, N], the low one first; signed."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    offs_h = tl.arange(0, BK // 2)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + offs_m[:, None] * K + k + offs_k[None, :], mask=offs_m[:, None] < M, other=0.0)  # fmt: skip
        p = tl.load(b_ptr + (k // 2 + offs_h[:, None]) * N + offs_n[None, :])
        low = ((p << 4) >> 4).to(tl.float16)
        high = (p >> 4).to(tl.float16)
        b = tl.join(low, high).permute(0, 2, 1).reshape(BK, BN)
        scales = tl.load(s_ptr + k // GROUP * N + offs_n)
        acc = tl.dot(a, b * scales[None, :], acc)
    mask = offs_m[:, None] < M
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16), mask=mask)


@tessera.jit
def bytes_by_group(
    a_ptr, b_ptr, s_ptr, c_ptr, M, N, K, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """b: int8 or fp8, stored [N, K] as the weights of a linear layer; scales [N, K / GROUP]."""
    pid = tl.program_id(0)
    num_m = tl.cdiv(M, BM)
    offs_m = (pid % num_m) * BM + tl.arange(0, BM)
    offs_n = (pid // num_m) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n[None, :] * K + offs_k[:, None]
    s_ptrs = s_ptr + offs_n * (K // GROUP)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptrs, mask=offs_m[:, None] < M, other=0.0)
        b = tl.load(b_ptrs)
        s = tl.load(s_ptrs + k // GROUP)
        acc += tl.dot(a, b.to(tl.float16)) * s[None, :].to(tl.float32)
        a_ptrs += BK
        b_ptrs += BK
    mask = offs_m[:, None] < M
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16), mask=mask)


@tessera.jit
def scaled_fp8(
    a_ptr, b_ptr, sa_ptr, sb_ptr, c_ptr, M, N, K, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Both fp8, with a scale for GROUP columns of a row of a, and one for GROUP x GROUP of b [N, K]."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_m % M)[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n[None, :] * K + offs_k[:, None]
    sa_ptrs = sa_ptr + (offs_m % M) * (K // GROUP)
    sb_ptrs = sb_ptr + (offs_n // GROUP) * (K // GROUP)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        sa = tl.load(sa_ptrs + k * BK // GROUP)
        sb = tl.load(sb_ptrs + k * BK // GROUP)
        acc += tl.dot(a, b) * sa[:, None] * sb[None, :]
        a_ptrs += BK
        b_ptrs += BK
    mask = offs_m[:, None] < M
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(tl.float16), mask=mask)


NAMES = "BM BN BK num_warps num_stages"
FEW = tiles((16, 64, 128, 4, 4), (16, 128, 64, 4, 4), (32, 64, 64, 4, 3), names=NAMES)
MANY = tiles(
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 3),
    (64, 128, 64, 4, 3),
    (128, 256, 64, 8, 3),
    names=NAMES,
)
GROUP = 128


def grid_of(M: int, N: int, config: Any) -> tuple[int, int]:
    return -(-M // config["BM"]), N // config["BN"]


def problem(
    what: str, dtype: str, M: int, N: int, K: int, launch: Any, c: Any, weights: Any, a: Any,
    library: dict[str, Any],
) -> Problem:  # fmt: skip
    """`weights()`: b in fp32, [K, N]; beside a library's product of widened weights."""
    calls = {"cuBLAS fp16": library["product"]} if DEVICE == "cuda" and "product" in library else {}
    return Problem(
        f"matmul, {what}, {'few' if M < 64 else 'many'} rows", f"{M}x{N}x{K}", dtype, 2.0 * M * N * K, "TFLOP/s",
        FEW if M < 64 else MANY, launch, [c], lambda: [a.float() @ weights()], calls,
    )  # fmt: skip


def sizes(small: bool, few: bool) -> tuple[int, int, int]:
    return (8 if few else 192, 256, 512) if small else (16 if few else 4096, 4096, 4096)


def int4_words(what: str, small: bool, few: bool) -> Problem:
    M, N, K = sizes(small, few)
    a, c = normal(M, K), empty(M, N)
    values, zeros = whole(0, 16, K, N), whole(0, 16, K // GROUP, N)
    scales = normal(K // GROUP, N, scale=0.02)
    places = 4 * torch.arange(8, device=DEVICE, dtype=torch.int64)
    b = (values.view(K // 8, 8, N).long() << places[:, None]).sum(1)
    z = (zeros.view(-1, N // 8, 8).long() << places).sum(2)
    b, z = (torch.where(x >= 1 << 31, x - (1 << 32), x).to(torch.int32) for x in (b, z))

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.packed_words[grid_of(M, N, config)](
            a, b, scales, z, c, M, N, K, GROUP, **config
        )

    def weights() -> Any:
        wide = (values.view(-1, GROUP, N) - zeros[:, None]).float() * scales.float()[:, None]
        return wide.view(K, N)

    half = weights().half()
    return problem(
        what, "fp16 x int4", M, N, K, launch, c, weights, a, {"product": lambda: a @ half}
    )


def int4_bytes(what: str, small: bool, few: bool) -> Problem:
    M, N, K = sizes(small, few)
    a, c = normal(M, K), empty(M, N)
    values, scales = whole(-8, 8, K, N), normal(K // GROUP, N, scale=0.02)
    low, high = values.view(-1, 2, N).unbind(1)
    b = ((low & 15) | (high << 4)).to(torch.int8)

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.packed_bytes[grid_of(M, N, config)](
            a, b, scales, c, M, N, K, GROUP, **config
        )

    def weights() -> Any:
        return (values.view(-1, GROUP, N).float() * scales.float()[:, None]).view(K, N)

    half = weights().half()
    return problem(
        what, "fp16 x int4", M, N, K, launch, c, weights, a, {"product": lambda: a @ half}
    )


def eight_bits(what: str, small: bool, few: bool, fp8: bool) -> Problem:
    M, N, K = sizes(small, few)
    a, c = normal(M, K), empty(M, N)
    b = normal(N, K, dtype=torch.float8_e4m3fn) if fp8 else whole(-128, 128, N, K, dtype=torch.int8)
    scales = normal(N, K // GROUP, scale=0.02)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (-(-M // config["BM"]) * (N // config["BN"]),)
        return lambda: kernels.bytes_by_group[grid](a, b, scales, c, M, N, K, GROUP, **config)

    def weights() -> Any:
        return (b.float().view(N, -1, GROUP) * scales.float()[..., None]).view(N, K).T

    half = weights().half()
    name = "fp16 x fp8" if fp8 else "fp16 x int8"
    return problem(what, name, M, N, K, launch, c, weights, a, {"product": lambda: a @ half})


def both_fp8(what: str, small: bool, few: bool) -> Problem:
    M, N, K = sizes(small, few)
    a, b = (normal(rows, K, dtype=torch.float8_e4m3fn) for rows in (M, N))
    c, sa = empty(M, N), normal(M, K // GROUP, dtype=torch.float32).abs() * 0.1
    sb = normal(N // GROUP, K // GROUP, dtype=torch.float32).abs() * 0.1

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.scaled_fp8[grid_of(M, N, config)](a, b, sa, sb, c, M, N, K, GROUP, **config)  # fmt: skip

    wide = (a.float().view(M, -1, GROUP) * sa[..., None]).view(M, K)

    def weights() -> Any:
        blocks = b.float().view(N // GROUP, GROUP, K // GROUP, GROUP)
        return (blocks * sb[:, None, :, None]).view(N, K).T

    return problem(what, "fp8", M, N, K, launch, c, weights, wide, {})


def problems(small: bool) -> Problems:
    for few in (True, False):
        rows = "few rows" if few else "many rows"
        for what, make in (
            ("int4 in words", int4_words), ("int4 in bytes", int4_bytes),
            ("int8 weights", partial(eight_bits, fp8=False)),
            ("fp8 weights", partial(eight_bits, fp8=True)), ("fp8 with scales", both_fp8),
        ):  # fmt: skip
            yield f"matmul, {what}, {rows}", partial(make, what, small, few)
