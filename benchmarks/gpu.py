"""GPU speeds of the examples' kernels beside Triton (same source, if installed) and torch, in one process.

    python benchmarks/gpu.py [--only softmax,matmul] [--rep MS] [--json FILE]

Times are medians in ms of single calls with a cold L2. In each round every program is called once, so that all meet the
same clock rates, in another order each time: with a fixed one, every second launch whose parameters have more than 200
bytes took 0.8 us longer, so that the same call took 7.2 or 8.1 us by its place. The last columns compare tessera with
Triton's time and with torch's. The cold L2 is full of lines to be written back, which costs up to 12 us: kernels that
only read look slower by that, copies do not, as they leave lines of their own behind.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orders
import record
import sources
import streams
import torch
import torch.nn.functional as F
from cases import DEVICE, Case, extents, in_turn, last_line, normal
from record import Row
from torch.nn.attention import SDPBackend, sdpa_kernel

from tessera.testing import do_bench, print_table


def matmul(size: int) -> Case:
    a, b = normal(size, size, dtype=torch.float16), normal(size, size, dtype=torch.float16)

    def build(compiler: str) -> Any:
        module, c = sources.example("03", compiler), torch.empty_like(a)
        return lambda: module.matmul(a, b, c), c

    return Case("matmul", f"{size}^3", "fp16", 2.0 * size**3, "TFLOP/s", build, lambda: a @ b)


def persistent_matmul(m: int, n: int, k: int) -> Case:
    a, b = normal(m, k, dtype=torch.float16), normal(n, k, dtype=torch.float16)
    programs = torch.cuda.get_device_properties(0).multi_processor_count

    def build(compiler: str) -> Any:
        module = sources.example("11", compiler)
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        return lambda: module.matmul(a, b, c, programs), c

    return Case(
        "persistent matmul", extents(m, n, k), "fp16", 2.0 * m * n * k, "TFLOP/s", build, lambda: a @ b.T
    )  # fmt: skip


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
    shape = f"{heads}x{length}x{dim}"
    work = 4.0 * heads * length**2 * dim / (2 if causal else 1)
    yield Case(
        f"{name} forward", shape, "fp16", work, "TFLOP/s", forward, lambda: reference(q, k, v)
    )
    yield Case(
        f"{name} backward", shape, "fp16", 2.5 * work, "TFLOP/s", backward,
        lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)[0],
    )  # fmt: skip


def attention_by_descriptors(heads: int, length: int, dim: int, causal: bool) -> Iterator[Case]:
    """The backward pass beside each of torch's kernels for it."""
    q, k, v, dout = (normal(heads, length, dim, dtype=torch.float16) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    wanted: dict[str, Any] = {}

    def build(compiler: str) -> Any:
        call = sources.example("12", compiler).Attention(DEVICE, heads, length, dim, causal)
        call.tune(q, k, v, lambda run: do_bench(run, warmup=5, rep=15, return_mode="median"))
        return lambda: call.forward(q, k, v), call.out

    def build_backward(compiler: str) -> Any:
        call = sources.example("12", compiler).Attention(DEVICE, heads, length, dim, causal)
        call.forward(q, k, v)
        time = partial(do_bench, warmup=5, rep=15, return_mode="median")
        call.tune_backward(q, k, v, dout, time)
        return lambda: call.backward(q, k, v, dout), (call.dq, call.dk, call.dv)

    def exact() -> dict[str, Any]:
        """Of two heads, in float64."""
        if not wanted:
            some = [0, heads - 1]
            inputs = [t[some].double().requires_grad_() for t in (q, k, v)]
            scores = inputs[0] @ inputs[1].transpose(1, 2) * dim**-0.5
            if causal:
                hidden = ~torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
                scores = scores.masked_fill(hidden, -float("inf"))
            out = scores.softmax(-1) @ inputs[2]
            gradients = torch.autograd.grad(out, inputs, dout[some].double())
            wanted.update(out=out.detach(), gradients=gradients)
        return wanted

    def deviation(result: Any, exact: Any) -> Any:
        return (result[[0, heads - 1]].double() - exact).abs().max() / exact.abs().max()

    def backward_error(results: Any) -> Any:
        return max(map(deviation, results, exact()["gradients"]))

    def reference(*inputs: Any) -> Any:
        batch = [t.view(4, heads // 4, length, dim) for t in inputs]
        return F.scaled_dot_product_attention(*batch, is_causal=causal).view(heads, length, dim)

    name = "attention by descriptors" if not causal else "causal attention by descriptors"
    shape = f"{heads}x{length}x{dim}"
    work = 4.0 * heads * length**2 * dim / (2 if causal else 1)
    yield Case(
        name, shape, "fp16", work, "TFLOP/s", build, lambda: reference(q, k, v),
        lambda result: deviation(result, exact()["out"]),
    )  # fmt: skip
    for label, kernel in (
        ("cuDNN", SDPBackend.CUDNN_ATTENTION),
        ("FA2", SDPBackend.FLASH_ATTENTION),
    ):
        with sdpa_kernel([kernel]):
            out = reference(*leaves)
        yield Case(
            f"{name}, backward, torch: {label}", shape, "fp16", 2.5 * work, "TFLOP/s",
            build_backward,
            lambda out=out: torch.autograd.grad(out, leaves, dout, retain_graph=True)[0],
            backward_error,
        )  # fmt: skip


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and builders: the arrays of a case live only while it runs."""
    yield from streams.cases()
    yield "matmul", lambda: matmul(4096)
    for m, n, k in ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (8192, 8192, 512)):
        yield "persistent matmul", lambda m=m, n=n, k=k: persistent_matmul(m, n, k)
    yield "operand orders", orders.products
    yield "attention", lambda: attention(128, 4096, 64, False)
    yield "attention", lambda: attention(128, 4096, 64, True)
    yield "attention", lambda: attention(128, 4096, 128, False)
    yield "attention", lambda: attention(128, 4096, 128, True)
    for dim, causal in ((64, False), (64, True), (128, False), (128, True)):
        yield (
            "descriptor attention",
            lambda d=dim, c=causal: attention_by_descriptors(128, 4096, d, c),
        )


def built(
    case: Case, compilers: list[str]
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """By compiler: the calls, and their results' largest error relative to the largest element. What fails is printed,
    and absent."""
    calls: dict[str, Callable[[], Any]] = {}
    deviations: dict[str, float] = {}
    expected = case.reference().float()
    for compiler in compilers:
        try:
            call, result = case.build(compiler)
            call()
            if case.error is not None:
                error = case.error(result)
            else:
                error = (result.float() - expected).abs().max() / expected.abs().max()
            deviations[compiler] = float(error)
            calls[compiler] = call
        except Exception as error:
            print(f"{case.name} by {compiler}: {type(error).__name__}: {last_line(error)}")
    return calls, deviations


def measure(case: Case, compilers: list[str], rep: float) -> Row:
    calls, deviations = built(case, compilers)
    times = in_turn({**calls, "torch": case.reference}, rep)
    per = 1e-6 if case.unit == "GB/s" else 1e-9
    rates = {who: case.work / ms * per for who, ms in times.items()}
    own = times.get("tessera", float("nan"))
    ratios = {who: ms / own for who, ms in times.items() if who != "tessera"}
    return Row(
        case.name, case.shape, case.dtype, "ms", times, case.unit, rates, ratios, deviations
    )  # fmt: skip


def shown(row: Row, compilers: list[str]) -> list[str]:
    """The cells of a row; results that differ from torch's by more than 1 % of its largest value are marked."""

    def rate(who: str) -> str:
        if who not in row.rates:
            return "FAILED"
        error = row.deviations.get(who, 0.0)
        return f"{row.rates[who]:,.0f} {row.unit}" + ("" if error < 0.01 else f" WRONG {error:.1e}")

    programs = [*compilers, "torch"]
    ratios = [f"{row.ratios.get(who, float('nan')):.2f}x" for who in programs[1:]]
    own = f"{row.times.get('tessera', float('nan')):.4f}"
    return [row.name, f"{row.shape} {row.dtype}", own, *map(rate, programs), *ratios]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="parts of case names, comma-separated")
    parser.add_argument("--rep", type=float, default=100.0, help="ms for timing each kernel")
    record.add_arguments(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    compilers = ["tessera"] + ["triton"] * (importlib.util.find_spec("triton") is not None)
    wanted = [word for word in args.only.split(",") if word]
    rows: list[Row] = []
    for name, build in cases():
        if wanted and not any(word in name for word in wanted):
            continue
        made = build()
        for case in [made] if isinstance(made, Case) else made:
            rows.append(measure(case, compilers, args.rep))
            print(*shown(rows[-1], compilers), sep=" | ", flush=True)
            record.write(args, "gpu", rows, torch.cuda.get_device_name())
        del made
        torch.cuda.empty_cache()
    title = f"{datetime.date.today()} {torch.cuda.get_device_name()}, torch {torch.__version__}"
    speedups = [f"vs {who}" for who in (*compilers[1:], "torch")]
    columns = ["kernel", "shape", "ms", *compilers, "torch", *speedups]
    print_table(title, columns, [shown(row, compilers) for row in rows])


if __name__ == "__main__":
    main()
