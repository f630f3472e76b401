"""Kernels of a program inside of functions that `backend="tessera"` compiles, in a process where tessera is Triton.

Each case is a function of its own: `python -m tests.graph.user_kernel_cases [name ...]`; TEST_DEVICE=cuda for a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# isort: off
import tessera.compat  # before anything that imports triton
import torch
import triton
import triton.language as tl
from torch._dynamo.utils import counters
from torch.library import triton_op, wrap_triton
from triton.tools.tensor_descriptor import TensorDescriptor
from tests.compat import report
from tests.graph.torch_kit import compare
# isort: on

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
torch.set_default_device(DEVICE)
assert triton.jit is tessera.jit


@triton.jit
def scale(x, y, n, by: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


@triton.jit
def split(x, a, b, n, BLOCK: tl.constexpr):
    """Writes every second element of b only."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(a + i, v + 1, mask=i < n)
    tl.store(b + i, v * 2, mask=(i < n) & (i % 2 == 0))


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 3, mask=i < n)


@triton.jit
def copy_tiles(source, target, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([i, j], source.load([i, j]) * 2)


def launch(x: Any, y: Any, by: float = 3.0) -> None:
    scale[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), by, 128)


@triton_op("tessera_test::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(scale)[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), 3.0, 128)
    return y


@triton_op("tessera_test::triple_", mutates_args=("x",))
def triple_(x: torch.Tensor) -> None:
    wrap_triton(scale)[(triton.cdiv(x.numel(), 128),)](x, x, x.numel(), 3.0, 128)


tripled.register_autograd(lambda ctx, grad: tripled(grad))


def check(f: Callable[..., Any], kernels: int, *inputs: Any, **more: Any) -> None:
    """Compare with eager, at known and at symbolic sizes: nothing breaks the graph, or runs it by eager as a whole."""
    for dynamic in (True, False):
        counters.clear()
        graphs = compare(f, *inputs, dynamic=dynamic, fullgraph=True, **more)
        assert not counters["graph_break"]
        assert all(g.imported is not None for g in graphs)
        names = [name for g in graphs for name, _ in g.externs]
        assert len(names) == kernels and all(n.startswith("kernel.") for n in names), names


def case_a_new_tensor_is_written() -> None:
    def f(x: Any) -> Any:
        y = torch.empty_like(x)
        launch(x + 1, y)
        return y * 2

    check(f, 1, torch.randn(300))


def case_a_value_is_written_in_place() -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        launch(y, y)
        return y + 1, x.sin()

    check(f, 1, torch.randn(300))


def case_an_argument_is_written() -> None:
    def f(x: Any, y: Any) -> Any:
        launch(x, y)
        return y + x

    check(f, 1, torch.randn(300), torch.randn(300))


def case_a_view_is_written_in_part() -> None:
    """Elements that the kernel leaves alone stay as they were, of two kernels that read each other's results, too."""

    def f(x: Any) -> Any:
        a, b = torch.empty_like(x), torch.ones(x.shape[0] + 4).narrow(0, 4, x.shape[0])
        grid = (triton.cdiv(x.numel(), 64),)
        split[grid](x, a, b, x.numel(), 64)
        split[grid](a, b, a, x.numel(), 64)
        return a + b

    check(f, 2, torch.randn(300))


def case_one_kernel_with_several_constants() -> None:
    def f(x: Any) -> Any:
        a, b = torch.empty_like(x), torch.empty_like(x)
        launch(x, a, 2.0)
        launch(x, b, 5.0)
        return a, b

    check(f, 2, torch.randn(300))


def case_an_operation_with_gradients() -> None:
    check(lambda x: tripled(x.sin()) * 2, 2, torch.randn(300, requires_grad=True), backward=True)


def case_an_operation_that_writes() -> None:
    def f(x: Any) -> Any:
        y = x.cos()
        triple_(y)
        triple_(x)
        return y + 1

    check(f, 2, torch.randn(300))


def case_a_tuned_kernel() -> None:
    def f(x: Any) -> Any:
        y = torch.empty_like(x)
        tuned[lambda m: (triton.cdiv(x.numel(), m["BLOCK"]),)](x + 1, y, x.numel())
        return y * 2

    check(f, 1, torch.randn(300))


def case_a_tuned_kernel_with_options() -> None:
    """torch has a kernel tuned anew whose configurations have the options of the launch; eager refuses them."""

    def f(x: Any) -> Any:
        y = torch.empty_like(x)
        once[(triton.cdiv(x.numel(), 64),)](x + 1, y, x.numel(), num_warps=2)
        return y * 2

    once = triton.autotune([tuned.configs[0]], key=["n"])(tuned.fn)
    x = torch.randn(300)
    torch.testing.assert_close(
        torch.compile(f, backend="tessera", fullgraph=True)(x), (x + 1) * 3 * 2
    )


def case_no_memory_is_copied_or_cleared() -> None:
    """A tensor that nobody has written before is made by the launch: no kernel of the graph fills it."""

    def f(x: Any) -> Any:
        y = torch.empty_like(x)
        launch(x, y)
        return y

    graphs = compare(f, torch.randn(300))
    assert [type(step).__name__ for step in graphs[0].run.plan.steps] == ["Extern"]


def case_descriptors() -> None:
    """Dynamo knows descriptors of the host where a GPU has tensor maps."""
    if DEVICE == "cpu":
        return

    def f(x: Any) -> Any:
        out = torch.empty_like(x)
        a, b = (TensorDescriptor.from_tensor(t, [32, 64]) for t in (x, out))
        copy_tiles[(4, 4)](a, b, 32, 64)
        return out + 1

    compare(f, torch.randn(128, 256), fullgraph=True)


if __name__ == "__main__":
    report.main(globals())
