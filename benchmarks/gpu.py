"""GPU speeds of the examples' kernels beside Triton (same source, if installed) and torch, in one process.

    python benchmarks/gpu.py [--only softmax,matmul] [--rep MS]

Times are medians in ms of single calls with a cold L2, a call of each program after the other, so that all meet the
same clock rates. The last column compares tessera with Triton's time.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sources
import torch
import torch.nn.functional as F

import common
from tessera.testing import do_bench, print_table


@dataclass
class Case:
    """One kernel on one shape: `build(compiler)` gives a call and the array it fills."""

    name: str
    shape: str
    work: float
    unit: str
    build: Callable[[str], tuple[Callable[[], Any], Any]]
    reference: Callable[[], Any]
    error: Callable[[Any], Any] | None = (
        None  # of a result; without it, the difference from the reference
    )


DEVICE = common.Device("cuda")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def vector_add() -> Case:
    n = 1 << 27
    x, y = normal(n), normal(n)

    def build(compiler: str) -> Any:
        module, out = sources.example("01", compiler), torch.empty_like(x)
        return lambda: module.add(x, y, out), out

    return Case("vector add", f"{n} fp32", 12.0 * n, "GB/s", build, lambda: x + y)


def softmax(rows: int, cols: int) -> Case:
    x = normal(rows, cols)

    def build(compiler: str) -> Any:
        module, out = sources.example("02", compiler), torch.empty_like(x)
        return lambda: module.softmax(x, out), out

    shape = f"{rows}x{cols} fp32"
    return Case("softmax", shape, 8.0 * rows * cols, "GB/s", build, lambda: x.softmax(1))


def layer_norm(rows: int, cols: int) -> Iterator[Case]:
    x, dy = normal(rows, cols), normal(rows, cols)
    w, b = normal(cols), normal(cols)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = F.layer_norm(leaves[0], (cols,), leaves[1], leaves[2])

    def forward(compiler: str) -> Any:
        norm = sources.example("05", compiler).LayerNorm(DEVICE, rows, cols)
        return lambda: norm.forward(x, w, b), norm.y

    def backward(compiler: str) -> Any:
        norm = sources.example("05", compiler).LayerNorm(DEVICE, rows, cols)
        norm.forward(x, w, b)
        return lambda: norm.backward(dy, x, w), norm.dx

    size, shape = 4.0 * rows * cols, f"{rows}x{cols} fp32"
    yield Case(
        "layer norm forward", shape, 2 * size, "GB/s", forward,
        lambda: F.layer_norm(x, (cols,), w, b),
    )  # fmt: skip
    yield Case(
        "layer norm backward", shape, 3 * size, "GB/s", backward,
        lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)[0],
    )  # fmt: skip


def rms_norm(rows: int, cols: int) -> Case:
    x, w = normal(rows, cols, dtype=torch.float16), normal(cols, dtype=torch.float16)

    def build(compiler: str) -> Any:
        module, y = sources.example("07", compiler), torch.empty_like(x)
        return lambda: module.rms_norm(x, w, y), y

    shape = f"{rows}x{cols} fp16"
    return Case(
        "RMS norm", shape, 4.0 * rows * cols, "GB/s", build, lambda: F.rms_norm(x, (cols,), w, 1e-6)
    )


def cross_entropy(rows: int, vocabulary: int) -> Iterator[Case]:
    logits = normal(rows, vocabulary)
    targets = torch.randint(0, vocabulary, (rows,), device="cuda")
    leaf = logits.clone().requires_grad_()
    mean = F.cross_entropy(leaf, targets)

    def forward(compiler: str) -> Any:
        module = sources.example("08", compiler)
        loss, lse = torch.empty(2, rows, device="cuda")
        return lambda: module.cross_entropy(logits, targets, loss, lse), loss

    def backward(compiler: str) -> Any:
        module, grad = sources.example("08", compiler), torch.empty_like(logits)
        lse = logits.logsumexp(1)
        return lambda: module.cross_entropy_gradient(logits, targets, lse, grad), grad

    size, shape = 4.0 * rows * vocabulary, f"{rows}x{vocabulary} fp32"
    yield Case(
        "cross entropy forward", shape, size, "GB/s", forward,
        lambda: F.cross_entropy(logits, targets, reduction="none"),
    )  # fmt: skip
    yield Case(
        "cross entropy backward", shape, 2 * size, "GB/s", backward,
        lambda: torch.autograd.grad(mean, leaf, retain_graph=True)[0],
    )  # fmt: skip


def matmul(size: int) -> Case:
    a, b = normal(size, size, dtype=torch.float16), normal(size, size, dtype=torch.float16)

    def build(compiler: str) -> Any:
        module, c = sources.example("03", compiler), torch.empty_like(a)
        return lambda: module.matmul(a, b, c), c

    return Case("matmul", f"{size}^3 fp16", 2.0 * size**3, "TFLOP/s", build, lambda: a @ b)


def persistent_matmul(m: int, n: int, k: int) -> Case:
    a, b = normal(m, k, dtype=torch.float16), normal(n, k, dtype=torch.float16)
    programs = torch.cuda.get_device_properties(0).multi_processor_count

    def build(compiler: str) -> Any:
        module = sources.example("11", compiler)
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        return lambda: module.matmul(a, b, c, programs), c

    shape = f"{m}x{n}x{k} fp16"
    return Case("persistent matmul", shape, 2.0 * m * n * k, "TFLOP/s", build, lambda: a @ b.T)


def attention(heads: int, length: int, dim: int, causal: bool) -> Iterator[Case]:
    q, k, v, dout = (normal(heads, length, dim, dtype=torch.float16) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]

    def reference(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]

    out = reference(*leaves)

    def tuned(compiler: str) -> Any:
        call = sources.example("06", compiler).Attention(DEVICE, heads, length, dim, causal)
        call.tune(q, k, v, dout, lambda run: do_bench(run, warmup=5, rep=15, return_mode="median"))
        return call

    def forward(compiler: str) -> Any:
        call = tuned(compiler)
        return lambda: call.forward(q, k, v), call.out

    def backward(compiler: str) -> Any:
        call = tuned(compiler)
        call.forward(q, k, v)
        return lambda: call.backward(q, k, v, dout), call.dq

    name = "causal attention" if causal else "attention"
    shape = f"{heads}x{length}x{dim} fp16"
    work = 4.0 * heads * length**2 * dim / (2 if causal else 1)
    yield Case(f"{name} forward", shape, work, "TFLOP/s", forward, lambda: reference(q, k, v))
    yield Case(
        f"{name} backward", shape, 2.5 * work, "TFLOP/s", backward,
        lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)[0],
    )  # fmt: skip


def attention_by_descriptors(heads: int, length: int, dim: int, causal: bool) -> Case:
    q, k, v = (normal(heads, length, dim, dtype=torch.float16) for _ in range(3))

    def build(compiler: str) -> Any:
        call = sources.example("12", compiler).Attention(DEVICE, heads, length, dim, causal)
        call.tune(q, k, v, lambda run: do_bench(run, warmup=5, rep=15, return_mode="median"))
        return lambda: call.forward(q, k, v), call.out

    def error(result: Any) -> Any:
        """Of two heads, against float64."""
        some = [0, heads - 1]
        scores = q[some].double() @ k[some].double().transpose(1, 2) * dim**-0.5
        if causal:
            hidden = ~torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
            scores = scores.masked_fill(hidden, -float("inf"))
        exact = scores.softmax(-1) @ v[some].double()
        return (result[some].double() - exact).abs().max() / exact.abs().max()

    def reference() -> Any:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]

    name = "attention by descriptors" if not causal else "causal attention by descriptors"
    shape = f"{heads}x{length}x{dim} fp16"
    work = 4.0 * heads * length**2 * dim / (2 if causal else 1)
    return Case(name, shape, work, "TFLOP/s", build, reference, error)


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and builders: the arrays of a case live only while it runs."""
    yield "vector add", vector_add
    yield "softmax", lambda: softmax(16384, 1024)
    yield "softmax", lambda: softmax(4096, 32768)
    yield "layer norm", lambda: layer_norm(16384, 4096)
    yield "rms norm", lambda: rms_norm(16384, 4096)
    yield "cross entropy", lambda: cross_entropy(4096, 128256)
    yield "matmul", lambda: matmul(4096)
    for m, n, k in ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (8192, 8192, 512)):
        yield "persistent matmul", lambda m=m, n=n, k=k: persistent_matmul(m, n, k)
    yield "attention", lambda: attention(128, 4096, 64, False)
    yield "attention", lambda: attention(128, 4096, 64, True)
    yield "attention", lambda: attention(128, 4096, 128, False)
    yield "attention", lambda: attention(128, 4096, 128, True)
    for dim, causal in ((64, False), (64, True), (128, False), (128, True)):
        yield (
            "descriptor attention",
            lambda d=dim, c=causal: attention_by_descriptors(128, 4096, d, c),
        )


def in_turn(calls: dict[str, Callable[[], Any]], rep: float) -> dict[str, float]:
    """Median ms of each call; in each round one call of each. About `rep` ms for each, five rounds at least."""
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    spent, rounds = 0.0, 0
    while rounds < 5 or (spent < rep * len(calls) and rounds < 1000):
        marks = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in calls
        ]
        for call, (start, end) in zip(calls.values(), marks, strict=True):
            flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        for name, (start, end) in zip(calls, marks, strict=True):
            times[name].append(start.elapsed_time(end))
            spent += times[name][-1]
        rounds += 1
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


def measure(case: Case, compilers: list[str], rep: float) -> list[Any]:
    """One row; results that differ from torch's by more than 1 % of its largest value are marked."""
    calls: dict[str, Callable[[], Any]] = {}
    marks: dict[str, str] = {}
    expected = case.reference().float()
    for compiler in compilers:
        try:
            call, result = case.build(compiler)
            call()
            if case.error is not None:
                error = case.error(result)
            else:
                error = (result.float() - expected).abs().max() / expected.abs().max()
            marks[compiler] = "" if error < 0.01 else f" WRONG {error:.1e}"
            calls[compiler] = call
        except Exception as error:
            print(f"{case.name} by {compiler}: {type(error).__name__}: {str(error)[:500]}")
            marks[compiler] = " FAILED"
    timed = in_turn({**calls, "torch": case.reference}, rep)
    times = {who: timed.get(who, float("nan")) for who in (*compilers, "torch")}
    per = 1e-6 if case.unit == "GB/s" else 1e-9
    rates = [
        f"{case.work / times[who] * per:,.0f} {case.unit}{marks.get(who, '')}"
        for who in (*compilers, "torch")
    ]
    ratios = [f"{times[who] / times['tessera']:.2f}x" for who in (*compilers[1:], "torch")]
    return [case.name, case.shape, f"{times['tessera']:.4f}", *rates, *ratios]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="parts of case names, comma-separated")
    parser.add_argument("--rep", type=float, default=100.0, help="ms for timing each kernel")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    compilers = ["tessera"] + ["triton"] * (importlib.util.find_spec("triton") is not None)
    wanted = [word for word in args.only.split(",") if word]
    rows: list[list[Any]] = []
    for name, build in cases():
        if wanted and not any(word in name for word in wanted):
            continue
        built = build()
        for case in [built] if isinstance(built, Case) else built:
            rows.append(measure(case, compilers, args.rep))
            print(*rows[-1], sep=" | ", flush=True)
        del built
        torch.cuda.empty_cache()
    versions = f"torch {torch.__version__}"
    if "triton" in compilers:
        versions += f", triton {importlib.import_module('triton').__version__}"
    title = f"{datetime.date.today()} {torch.cuda.get_device_name()}, {versions}"
    speedups = [f"vs {who}" for who in (*compilers[1:], "torch")]
    print_table(title, ["kernel", "shape", "ms", *compilers, "torch", *speedups], rows)


if __name__ == "__main__":
    main()
