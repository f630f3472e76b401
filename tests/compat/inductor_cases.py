"""Stock TorchInductor on tessera: generated kernels, user kernels, dynamic shapes, random numbers.

On the device that TEST_DEVICE names, the CPU by default. On CUDA every kernel goes through Inductor's own launcher.
"""

# pyright: reportIndexIssue=false
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# isort: off
import tessera.compat  # noqa: F401  before torch._dynamo, which imports triton
import pytest
import torch
import torch._inductor.config as inductor_config
import triton
import triton.language as tl
from torch._dynamo.testing import CompileCounter
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor.utils import run_and_get_code
from torch.library import triton_op, wrap_triton
from triton import cdiv
from triton.language import arange, load, store
from triton.language.extra.libdevice import tanh
import report
# isort: on

inductor_config.cpu_backend = "triton"
inductor_config.triton.autotune_pointwise = False
inductor_config.fallback_random = True
inductor_config.compile_threads = 1
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
torch.set_default_device(DEVICE)
inductor_config.strict_static_triton_launcher = DEVICE == "cuda"
inductor_config.static_launch_user_defined_triton_kernels = DEVICE == "cuda"


def same(
    function: Callable[..., Any], *args: Any, rtol: float = 1e-5, atol: float = 1e-5, **options: Any
) -> str:
    """Compile `function`, compare with eager, return the generated code."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, **options)
    found, code = run_and_get_code(compiled, *args)
    torch.testing.assert_close(found, function(*args), rtol=rtol, atol=atol)
    return "\n".join(code)


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape) for shape in shapes]


def case_pointwise() -> None:
    x, y = tensors((100, 130), (100, 130))
    code = same(lambda x, y: (x * y + x).sin().relu(), x, y)
    assert "@triton.jit" in code


def case_reductions() -> None:
    (x,) = tensors((100, 130))
    same(lambda x: (x.sum(-1), x.sum(0), x.sum(), x.amax(1), x.argmin(0), x.var(-1), x.prod(1)), x)
    same(lambda x: x.sum(-1), torch.randn(4, 100_000), rtol=1e-4, atol=1e-3)


def case_softmax_and_layer_norm() -> None:
    x, big = tensors((100, 130), (4, 50_000))
    same(lambda x: torch.softmax(x, -1), x)
    same(lambda x: torch.softmax(x, -1), big)
    same(lambda x: torch.nn.functional.layer_norm(x, (130,)), x)


def case_scans_and_sort() -> None:
    (x,) = tensors((8, 60))
    same(lambda x: (x.cumsum(-1), x.cumprod(0), x.logcumsumexp(1)), x)
    same(lambda x: x.sort(dim=-1, stable=True), x)


def case_gather_scatter() -> None:
    (x,) = tensors((50, 30))
    i = torch.randint(0, 50, (70,))
    same(lambda x, i: x[i].tanh(), x, i)
    same(lambda x, i: torch.zeros(50, 30).index_add(0, i, x[i]), x, i)
    same(lambda x, i: torch.nn.functional.embedding(i, x), x, i)


def case_small_dtypes() -> None:
    a, b = (t.bfloat16() for t in tensors((64, 33), (64, 33)))
    same(lambda a, b: (a + b).relu(), a, b)
    same(lambda a, b: (a > b) & (a > 0), a, b)
    same(lambda a: a.to(torch.int8).to(torch.float16), a)


def case_dynamic_shapes() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(lambda x: torch.softmax(x * 2 + x.shape[0], -1), dynamic=True)
    counted = torch.compile(lambda x: torch.softmax(x * 2, -1), dynamic=True, backend=counter)
    for n, m in ((10, 20), (33, 65), (128, 1000)):
        x = torch.randn(n, m)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2 + n, -1))
        counted(x)
    assert counter.frame_count == 1


def case_indices_out_of_range() -> None:
    torch._dynamo.reset()
    torch.set_default_device("cpu")  # on a GPU a failed assertion ends the process
    x = torch.randn(10)
    compiled = torch.compile(lambda x, i: x[i] + 1)
    with (
        inductor_config.patch(strict_static_triton_launcher=False),
        pytest.raises(AssertionError, match="out of bounds"),
    ):
        compiled(x, torch.tensor([3, 12]))
    torch.set_default_device(DEVICE)


def case_random_numbers() -> None:
    torch._dynamo.reset()
    with inductor_config.patch(fallback_random=False):
        compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.25))
        torch.manual_seed(1)
        first = compiled(torch.ones(100_000))
        torch.manual_seed(1)
        assert torch.equal(first, compiled(torch.ones(100_000)))
    assert abs(first.mean().item() - 1) < 0.02
    assert abs((first == 0).float().mean().item() - 0.25) < 0.01


def case_matmul_templates() -> None:
    a, b = tensors((64, 96), (96, 128))
    chosen = {
        "max_autotune": True,
        "max_autotune_gemm_backends": "TRITON",
        "benchmark_epilogue_fusion": False,
    }
    with inductor_config.patch(**chosen):
        code = same(lambda a, b: (a @ b).relu(), a, b, rtol=1e-4, atol=1e-4)
    assert "tl.dot(" in code


# --- kernels of the user ------------------------------------------------------------------------------------
@triton.jit
def add_kernel(a, b, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + tl.load(b + i, i < n), i < n)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(a, out, n, s, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) * s, i < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def even_kernel(a, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + i, tl.load(a + i) * 2)
    else:
        tl.store(out + i, tl.load(a + i, i < n) * 3, i < n)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    add_kernel[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](
        a, b, out, a.numel(), BLOCK=64
    )
    return out


def case_user_kernel() -> None:
    a, b = tensors((1000,), (1000,))
    same(lambda a, b: add(a * 2, b).relu(), a, b)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: add(a * 2, b), fullgraph=True, dynamic=True)
    for n in (1000, 1001, 16):
        torch.testing.assert_close(compiled(a[:n], b[:n]), a[:n] * 2 + b[:n])


def case_tuned_kernel() -> None:
    (a,) = tensors((1000,))

    def scaled(a: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        scale_kernel[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, out, a.numel(), 2.5)
        return out + 1

    same(scaled, a)


def case_heuristics_kernel() -> None:
    def even(a: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        even_kernel[(triton.cdiv(a.numel(), 64),)](a, out, a.numel(), BLOCK=64)
        return out + 1

    same(even, torch.randn(1000))
    same(even, torch.randn(1024))


FACTOR = tl.constexpr(3)


@triton.constexpr_function
def plus_three(x):
    return x + 3


@triton.jit
def times_factor(x):
    return x * FACTOR


@triton.jit
def names_kernel(a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + arange(0, BLOCK)
    x = times_factor(load(a + i, i < n).to(tl.float32))
    store(out + i, tanh(x) + plus_three(BLOCK) + cdiv(BLOCK, 3), i < n)


def case_names_that_a_kernel_uses() -> None:
    """Inductor writes what a user's kernel names into its own program: by import, by value or by source."""

    def named(a: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        names_kernel[(triton.cdiv(a.numel(), 64),)](a, out, a.numel(), BLOCK=64)
        return out + 1

    a = torch.randn(100)
    torch.testing.assert_close(named(a), (a * 3).tanh() + 64 + 3 + 22 + 1)
    same(named, a)


def case_in_place_kernel() -> None:
    def accumulate(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = a + 1
        add_kernel[(triton.cdiv(a.numel(), 64),)](a, b, c, a.numel(), BLOCK=64)
        return c, a * 2

    same(accumulate, *tensors((1000,), (1000,)))


@triton.jit
def block_kernel(source, target, rows, columns, M: tl.constexpr, N: tl.constexpr):
    a = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [M, N])
    b = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [M, N])
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    b.store([i, j], a.load([i, j]) * 2)


def case_user_kernel_with_descriptors() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        block_kernel[(4, 4)](x, out, *x.shape, 32, 64)  # pyright: ignore[reportCallIssue]
        return out + x

    # Descriptors made in a kernel need scratch memory on GPUs, which the static launcher does not give.
    with inductor_config.patch(strict_static_triton_launcher=False):
        same(doubled, torch.randn(128, 256))


def case_triton_op() -> None:
    @triton_op("tessera_tests::add", mutates_args={})
    def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        grid = (triton.cdiv(a.numel(), 128),)
        wrap_triton(add_kernel)[grid](a, b, out, a.numel(), BLOCK=128)
        return out

    added.register_autograd(lambda context, grad: (grad, grad))
    a, b = (t.requires_grad_() for t in tensors((1000,), (1000,)))
    torch._dynamo.reset()
    torch.compile(lambda a, b: (added(a.sin(), b) * b).sum(), fullgraph=True)(a, b).backward()
    expected = torch.autograd.grad(((a.sin() + b) * b).sum(), (a, b))
    torch.testing.assert_close((a.grad, b.grad), expected)


class Added(torch.autograd.Function):
    """A kernel with its gradient."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return add(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grad, grad


def case_autograd_function() -> None:
    a, b = tensors((1000,), (1000,))
    a.requires_grad_()
    torch._dynamo.reset()
    torch.compile(lambda a, b: (Added.apply(a, b) ** 2).sum(), fullgraph=True)(a, b).backward()
    torch.testing.assert_close(a.grad, 2 * (a + b).detach())


class WithKernels(torch.nn.Module):
    """Layers, an operator that is a kernel, a function with a kernel's gradient, and a kernel as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = Added.apply(self.inner(x), x.repeat(1, 2)).relu()
        return torch.ops.tessera_tests.doubled(self.out(y)).softmax(-1)


@triton_op("tessera_tests::doubled", mutates_args={})
def doubled(a: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    wrap_triton(scale_kernel)[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](
        a, out, a.numel(), 2.0
    )
    return out


doubled.register_autograd(lambda context, grad: doubled(grad))


def case_a_model_with_kernels() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = WithKernels(), torch.randn(16, 32)

    def step(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        model.zero_grad()
        loss = call(x).square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    torch.testing.assert_close(step(torch.compile(model, fullgraph=True)), step(model))
    assert torch._dynamo.explain(model)(x).graph_break_count == 0


def case_accesses_of_a_kernel() -> None:
    t = torch.randn(64)
    arguments = {"a": t, "b": t, "out": t, "n": 64, "BLOCK": 64}
    if identify := getattr(triton_kernel_wrap, "identify_mutated_tensors", None):  # before 2.12
        assert identify(add_kernel, arguments, {}) == ["out"]
        return
    kernel: Any = add_kernel
    found = triton_kernel_wrap.identify_accessed_tensors(kernel, arguments, {}).read_writes
    assert {d.name for d in found.reads} == {"a", "b"}
    assert {d.name for d in found.writes} == {"out"}


if __name__ == "__main__":
    report.main(globals())
