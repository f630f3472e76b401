"""Floats that a program computes from sizes: arguments of kernels, for which no size needs a compilation of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils._sympy import functions  # noqa: E402

from tessera.graph.torch.numbers import computed  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402
from tests.graph.torch_kit import compare, copied, difference, externs, gradients  # noqa: E402


def leaf(*shape: int) -> Any:
    return torch.randn(*shape, requires_grad=True)


def attention(q: Any, k: Any) -> Any:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


def fills(x: Any) -> Any:
    n = x.shape[0]
    return x + torch.full((4,), n / 3) + x.new_full((4,), n / 7) + torch.scalar_tensor(n / 9)


def bounds(x: Any) -> Any:
    n = x.shape[0]
    return x.clamp(-1 / n, n / 9).masked_fill(x > 1, n / 7).where(x < 1, 2 / n)


# Programs whose kernels take a float, and their inputs for a size.
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "std": (lambda x: x.std(0), lambda n: (leaf(n, 4),)),
    "std_mean": (lambda x: torch.std_mean(x, correction=0), lambda n: (leaf(n, 4),)),
    "var": (lambda x: x.var(0, correction=2), lambda n: (leaf(n, 4),)),
    "mean": (lambda x: x.sum(0) / x.shape[0] + x.sum() * (1 / x.shape[0]), lambda n: (leaf(n, 4),)),
    "fills": (fills, lambda n: (leaf(n, 4),)),
    "bounds": (bounds, lambda n: (leaf(n, 4),)),
    "alpha": (lambda x: torch.add(x, x.sin(), alpha=x.shape[0] / 3), lambda n: (leaf(n, 4),)),
    "whole numbers": (lambda x: x.long() * (x.shape[0] / 3), lambda n: (leaf(n, 4),)),
    "bf16": (lambda x: x * (x.shape[0] / 3), lambda n: (leaf(n, 4).bfloat16(),)),
    "linspace": (
        lambda x: torch.linspace(0, x.shape[0] / 2, 5, device=x.device) + x.sum(), lambda n: (leaf(n, 4),),
    ),
    "resized": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), lambda n: (leaf(1, 2, n, n + 1),),
    ),
    "smoothed": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), lambda n: (leaf(n, 4), torch.arange(n) % 4),
    ),
}  # fmt: skip


def runs(function: Any, given: Callable[[int], tuple[Any, ...]], most: int = 2) -> set[str]:
    """Compare with eager for several sizes, gradients included, after at most so many compilations. The externs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("tessera")
    compiled = torch.compile(function, backend=counter)
    with recording() as graphs:
        for n in (7, 12, 33, 5):
            torch.manual_seed(n)
            theirs = given(n)
            ours = copied(theirs)
            wanted = gradients(function, theirs, {})
            assert difference(gradients(compiled, ours, {}), wanted, scale=2) is None
    assert counter.frame_count <= most or torch.get_default_device().type != "cpu"
    return externs(graphs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_take_floats_of_sizes(name: str):
    assert runs(*PROGRAMS[name]) == set()


@pytest.mark.parametrize("shape", [(4,), (4, 3, 5)])
def test_batch_norm_trains_with_any_batch(shape: tuple[int, ...]):
    of = torch.nn.BatchNorm1d if len(shape) == 1 else torch.nn.BatchNorm2d
    module = torch.nn.Sequential(of(shape[0]), torch.nn.ReLU())
    state = copied(dict(module.state_dict()))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("tessera")
    compiled = torch.compile(module, backend=counter)
    with recording() as graphs:
        for n in (7, 12, 33, 5):
            given = leaf(n, *shape)
            found = []
            for call in (module, compiled):
                module.load_state_dict(copied(state))
                module.zero_grad()
                (x,) = copied((given,))
                out = call(x)
                (out * out.cos()).sum().backward()
                of_weights = [p.grad.clone() for p in module.parameters()]
                found.append((out.detach(), x.grad, of_weights, copied(dict(module.state_dict()))))
            assert difference(found[1], found[0], scale=2) is None
    assert counter.frame_count <= 2 or torch.get_default_device().type != "cpu"
    assert externs(graphs) == set()


def test_an_attention_of_any_head_size():
    products = {"aten.mm.default", "aten.bmm.default"}
    assert runs(attention, lambda n: (leaf(2, 5, n), leaf(2, 5, n))) <= products


def test_externs_take_floats_of_sizes():
    def f(x: Any) -> Any:
        return torch.addmm(x, x, torch.ones(4, 4), alpha=1 / x.shape[0], beta=x.shape[0] / 3)

    assert "aten.addmm.default" in runs(f, lambda n: (leaf(n, 4),))


@pytest.mark.parametrize("kernels", ["interpreted", "none"])
def test_floats_of_sizes_in_other_ways_to_run(kernels: str):
    for name in ("std", "fills"):
        function, given = PROGRAMS[name]
        compare(function, *given(9), backward=True, dynamic=True, options={"kernels": kernels})


def test_a_result_may_be_a_float():
    def f(x: Any) -> Any:
        return x * 2, x.shape[0] / 3, max(x.shape[0] * 0.5, 1.0)

    runs(f, lambda n: (leaf(n, 4),))


ROUNDED: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "half": (lambda x: x[: int(x.shape[0] * 0.5)].sin().sum(0), lambda n: (leaf(n, 4),)),
    "blocks": (lambda x: x.new_ones(math.ceil(x.shape[0] / 3), 4) * x.sum(0), lambda n: (leaf(n, 4),)),
    "resized": (
        lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest"), lambda n: (leaf(1, 2, n, n + 1),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_floats_are_sizes(name: str):
    assert runs(*ROUNDED[name]) == set()


def test_a_rounded_size_may_be_nothing():
    """A fifth of thirteen rows are two, of four there are none."""

    def f(x: Any) -> Any:
        n = int(x.shape[0] * 0.2)
        return x[:n] * 2, torch.cat([x[:n], x, x.new_zeros(n, 4)]).sum(0), x.new_ones(n, 4).sum()

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tessera", dynamic=True)
    for n in (13, 4, 2, 26):
        x = torch.randn(n, 4)
        assert difference(compiled(x), f(x)) is None


def test_rounding_is_that_of_doubles():
    """A third of a size is no float of 32 bits: it is rounded where it meets one, and not before."""

    def f(x: Any, y: Any) -> Any:
        return x * (x.shape[0] / 3), y * (x.shape[0] / 3)

    given = lambda n: (torch.randn(n, 4), torch.randn(n, 4, dtype=torch.float64))
    compiled = torch.compile(f, backend="tessera", dynamic=True)
    for n in (7, 11, 100):
        inputs = given(n)
        for found, wanted in zip(compiled(*inputs), f(*inputs), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_division_by_no_degrees_of_freedom():
    """Eager divides by zero, for two elements less two; Python's division would be an error."""

    def f(x: Any) -> Any:
        return x.var(0, correction=2)

    compiled = torch.compile(f, backend="tessera", dynamic=True)
    for n in (7, 2):
        given = (leaf(n, 3),)
        assert difference(gradients(compiled, copied(given), {}), gradients(f, given, {})) is None


def test_whole_numbers_of_the_program_are_operands():
    """Kernels read them as they read sizes: no value needs a graph of its own, or an operation of eager's."""

    def f(x: Any, y: Any, n: int) -> Any:
        rows = torch.arange(y.shape[0], device=y.device) % x.shape[0]
        return (
            torch.baddbmm(x[None], y.mT[None], y[None], beta=n, alpha=n + 1),
            x.index_add(0, rows, y, alpha=n), x.scatter(0, rows[:, None].expand_as(y)[:2], n),
            torch.constant_pad_nd(x, (1, 0), n),
        )  # fmt: skip

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tessera", dynamic=True)
    x, y = torch.randn(4, 4), torch.randn(6, 4)
    torch._dynamo.mark_static(x)
    torch._dynamo.mark_static(y)
    with recording() as graphs:
        for n in (5, 3):
            assert difference(compiled(x, y, n), f(x, y, n)) is None
    # cuBLAS has the small products on GPUs
    libraries = {"aten.baddbmm.default"} if x.is_cuda else set()
    assert len(graphs) == 1 and externs(graphs) == libraries


def test_random_numbers_of_the_program_are_new_in_each_call():
    """Dynamo takes Python's for fp32 and passes fp64."""

    def f(x: Any) -> Any:
        return x * random.uniform(1, 2) + random.randint(1, 9)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tessera", fullgraph=True)
    found = []
    for run in (compiled, f):
        random.seed(3)
        found.append([run(torch.ones(2)) for _ in range(3)])
    assert difference(*found) is None


def test_expressions_of_floats():
    sympy = pytest.importorskip("sympy")
    sizes: Any = functions
    s: Any = sympy.Symbol("s0", positive=True, integer=True)
    real = sizes.ToFloat(s)
    cases = {
        sizes.IntTrueDiv(s, 3): 7 / 3, real * 0.1 - 1.0: 7 * 0.1 - 1, sizes.FloatPow(real, -0.5): 7**-0.5,
        sizes.OpaqueUnaryFn_sqrt(real): math.sqrt(7), sizes.Max(s, 9) + s * s: 58, sizes.FloorDiv(s, 2) % 2: 1,
        sizes.TruncToInt(real * 0.5): 3, sizes.CeilToInt(real * 0.5): 4,
        sizes.FloatTrueDiv(-1.0, real - 7.0): -math.inf,
    }  # fmt: skip
    for e, wanted in cases.items():
        found = computed(e)({"s0": 7})
        assert found == wanted and type(found) is type(wanted), e
