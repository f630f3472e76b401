"""Cases of kernels that memory bounds, in the examples: element-wise, rows, and products with few rows or columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sources
import torch
import torch.nn.functional as F
from cases import DEVICE, Case, extents, name_of, normal

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


def vector_add() -> Case:
    n = 1 << 27
    x, y = normal(n), normal(n)

    def build(compiler: str) -> Any:
        module, out = sources.example("01", compiler), torch.empty_like(x)
        return lambda: module.add(x, y, out), out

    return Case(
        "vector add", f"2^{n.bit_length() - 1}", "fp32", 12.0 * n, "GB/s", build, lambda: x + y
    )


def dropout(numbers: int) -> Case:
    """`numbers` that are taken from a counter of the generator."""
    n = 1 << 26
    x = normal(n)

    def build(compiler: str) -> Any:
        out = torch.empty_like(x)
        if numbers == 4:
            module = sources.example("04", compiler)
            return lambda: module.dropout(x, out, 0.3, 1234), out
        kernel, block = sources.kernels(compiler).single_dropout, 2048
        return lambda: kernel[(n // block,)](x, out, 0.3, 1234, BLOCK=block), out

    def error(result: Any) -> Any:
        """Kept elements are scaled, and as many are kept as should be."""
        kept = result != 0
        wrong = torch.where(kept, result - x / 0.7, 0.0).abs().max()
        return torch.maximum(wrong, (kept.float().mean() - 0.7).abs())

    reference = lambda: F.dropout(x, 0.3)  # noqa: E731
    name, shape = f"dropout, {numbers} of a counter", f"2^{n.bit_length() - 1}"
    return Case(name, shape, "fp32", 8.0 * n, "GB/s", build, reference, error)


def softmax(rows: int, cols: int, dtype: torch.dtype) -> Case:
    x = normal(rows, cols, dtype=dtype)

    def build(compiler: str) -> Any:
        module, out = sources.example("02", compiler), torch.empty_like(x)
        return lambda: module.softmax(x, out), out

    shape, kind = f"{rows}x{cols}", name_of(dtype)
    return Case("softmax", shape, kind, 2.0 * x.nbytes, "GB/s", build, lambda: x.softmax(1))


def layer_norm(rows: int, cols: int, dtype: torch.dtype) -> Case:
    x, w, b = normal(rows, cols, dtype=dtype), normal(cols, dtype=dtype), normal(cols, dtype=dtype)

    def build(compiler: str) -> Any:
        kind = str(dtype).removeprefix("torch.")
        norm = sources.example("05", compiler).LayerNorm(DEVICE, rows, cols, dtype=kind)
        return lambda: norm.forward(x, w, b), norm.y

    shape, kind = f"{rows}x{cols}", name_of(dtype)
    reference = lambda: F.layer_norm(x, (cols,), w, b)  # noqa: E731
    return Case("layer norm forward", shape, kind, 2.0 * x.nbytes, "GB/s", build, reference)


def layer_norm_gradient(rows: int, cols: int) -> Case:
    x, dy, w, b = normal(rows, cols), normal(rows, cols), normal(cols), normal(cols)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = F.layer_norm(leaves[0], (cols,), leaves[1], leaves[2])

    def build(compiler: str) -> Any:
        norm = sources.example("05", compiler).LayerNorm(DEVICE, rows, cols)
        norm.forward(x, w, b)
        return lambda: norm.backward(dy, x, w), norm.dx

    def reference() -> Any:
        return torch.autograd.grad(y, leaves, dy, retain_graph=True)[0]

    shape = f"{rows}x{cols}"
    return Case("layer norm backward", shape, "fp32", 3.0 * x.nbytes, "GB/s", build, reference)


def rms_norm(rows: int, cols: int) -> Case:
    x, w = normal(rows, cols, dtype=HALF), normal(cols, dtype=HALF)

    def build(compiler: str) -> Any:
        module, y = sources.example("07", compiler), torch.empty_like(x)
        return lambda: module.rms_norm(x, w, y), y

    shape = f"{rows}x{cols}"
    reference = lambda: F.rms_norm(x, (cols,), w, 1e-6)  # noqa: E731
    return Case("RMS norm", shape, "fp16", 2.0 * x.nbytes, "GB/s", build, reference)


def cross_entropy(rows: int, vocabulary: int, dtype: torch.dtype) -> Iterator[Case]:
    logits = normal(rows, vocabulary, dtype=dtype)
    targets = torch.randint(0, vocabulary, (rows,), device="cuda")
    leaf = logits.clone().requires_grad_()
    mean = F.cross_entropy(leaf, targets)

    def forward(compiler: str) -> Any:
        module = sources.example("08", compiler)
        loss, lse = torch.empty(2, rows, device="cuda")
        return lambda: module.cross_entropy(logits, targets, loss, lse), loss

    def backward(compiler: str) -> Any:
        module, grad = sources.example("08", compiler), torch.empty_like(logits)
        lse = logits.float().logsumexp(1)
        return lambda: module.cross_entropy_gradient(logits, targets, lse, grad), grad

    size, shape, kind = float(logits.nbytes), f"{rows}x{vocabulary}", name_of(dtype)
    yield Case(
        "cross entropy forward", shape, kind, size, "GB/s", forward,
        lambda: F.cross_entropy(logits, targets, reduction="none"),
    )  # fmt: skip
    yield Case(
        "cross entropy backward", shape, kind, 2 * size, "GB/s", backward,
        lambda: torch.autograd.grad(mean, leaf, retain_graph=True)[0],
    )  # fmt: skip


def gemv(rows: int, cols: int, dtype: torch.dtype) -> Case:
    a, x = normal(rows, cols, dtype=dtype), normal(cols, dtype=dtype)

    def build(compiler: str) -> Any:
        module, y = sources.example("13", compiler), torch.empty(rows, device="cuda")
        return lambda: module.gemv(a, x, y), y

    shape, kind = f"{rows}x{cols}", name_of(dtype)
    return Case("GEMV", shape, kind, float(a.nbytes), "GB/s", build, lambda: a @ x)


def decoding(heads: int, group: int, length: int, dim: int) -> Case:
    q = normal(heads * group, dim, dtype=HALF)
    k, v = (normal(heads, length, dim, dtype=HALF) for _ in range(2))

    def build(compiler: str) -> Any:
        call = sources.example("14", compiler).Decoding(DEVICE, heads, group, length, dim)
        return lambda: call.run(q, k, v), call.out

    def reference() -> Any:
        queries = q.view(1, heads * group, 1, dim)
        out = F.scaled_dot_product_attention(queries, k[None], v[None], enable_gqa=True)
        return out.view(heads * group, dim)

    shape, size = f"{heads} heads for {group} queries, {length}x{dim}", float(k.nbytes + v.nbytes)
    return Case("decode attention", shape, "fp16", size, "GB/s", build, reference)


def split_product(m: int, n: int, k: int, atomic: bool) -> Case:
    a, b = normal(m, k, dtype=HALF), normal(k, n, dtype=HALF)

    def build(compiler: str) -> Any:
        call = sources.example("15", compiler).SplitMatmul(DEVICE, m, n, k, atomic)
        return lambda: call.run(a, b), call.c

    name = f"split-K matmul, {'atomics' if atomic else 'workspace'}"
    work = 2.0 * m * n * k
    return Case(name, extents(m, n, k), "fp16", work, "TFLOP/s", build, lambda: a @ b)


def stream_product(m: int, n: int, k: int) -> Case:
    a, b = normal(m, k, dtype=HALF), normal(k, n, dtype=HALF)

    def build(compiler: str) -> Any:
        call = sources.example("10", compiler).StreamMatmul(DEVICE, m, n, k)
        return lambda: call.run(a, b), call.c

    shape, work = extents(m, n, k), 2.0 * m * n * k
    return Case("stream-K matmul", shape, "fp16", work, "TFLOP/s", build, lambda: a @ b)


ROWS = ((4096, 4096), (4096, 8192), (16384, 1536))
TABLE: tuple[tuple[str, Callable[..., Any], tuple[tuple[Any, ...], ...]], ...] = (
    ("vector add", vector_add, ((),)),
    ("dropout", dropout, ((4,), (1,))),
    (
        "softmax",
        softmax,
        (
            (16384, 1024, FULL), (4096, 32768, FULL),
            *((*shape, dtype)
              for shape in ((8192, 1024), (8192, 4096), (4096, 16384), (8191, 3000))
              for dtype in (FULL, HALF)),
        ),
    ),
    ("layer norm", layer_norm, ((16384, 4096, FULL), *((*shape, HALF) for shape in ROWS))),
    ("layer norm", layer_norm_gradient, ((16384, 4096),)),
    ("rms norm", rms_norm, ((16384, 4096), *ROWS)),
    ("cross entropy", cross_entropy, ((4096, 128256, FULL), (4096, 128256, BRAIN))),
    ("gemv", gemv, ((16384, 16384, FULL), (16384, 16384, HALF), (8192, 8192, HALF))),
    ("decode", decoding, ((64, 8, 8192, 128), (256, 1, 4096, 128), (8, 8, 65536, 128))),
    (
        "split-k",
        split_product,
        ((16, 8192, 8192, True), (128, 256, 16384, True), (128, 256, 16384, False)),
    ),
    ("stream-k", stream_product, ((1536, 1536, 4096), (1536, 1536, 16384))),
)  # fmt: skip


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and builders: the arrays of a case live only while it runs."""
    for name, make, shapes in TABLE:
        for shape in shapes:
            yield name, lambda make=make, shape=shape: make(*shape)
