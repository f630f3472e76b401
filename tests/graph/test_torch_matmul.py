"""Matrix products under backend="tessera": kernels of ours and eager's, forward and backward, beside float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch.nn import functional as F  # noqa: E402

from tessera.graph.planning.plan import Extern, Launch  # noqa: E402
from tests.graph.torch_kit import recording  # noqa: E402


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    return F.gelu(F.linear(x, w, b)) @ v


def batched(x: Any, y: Any, c: Any) -> Any:
    return torch.baddbmm(c, x, y.transpose(1, 2), beta=0.5, alpha=2) + torch.bmm(x, y.mT).relu()


def vectors(x: Any, w: Any, b: Any) -> Any:
    return torch.addmm(b, x[:1], w.t()).tanh() + (w @ x.t()[:, :1]).t()


CASES = {
    "mlp": (mlp, [(3, 7, 40), (48, 40), (48,), (48, 20)]),
    "batched": (batched, [(4, 9, 16), (4, 11, 16), (11,)]),
    "vectors": (vectors, [(5, 64), (32, 64), (32,)]),
}


def gradients(f: Any, given: list[Any]) -> list[Any]:
    out = f(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), given)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_products_and_their_gradients_are_as_close_to_float64_as_eagers(name: str, dtype: Any):
    f, shapes = CASES[name]
    torch.manual_seed(0)
    given = [torch.randn(*s).to(dtype).requires_grad_() for s in shapes]
    exact = gradients(f, [x.detach().double().requires_grad_() for x in given])
    eager = gradients(f, given)
    for dynamic in (False, True):
        torch._dynamo.reset()
        options: dict[str, Any] = {"matmul": "kernel"}
        compiled = torch.compile(f, backend="tessera", dynamic=dynamic, options=options)
        with recording() as graphs:
            found = gradients(compiled, given)
        steps = [s for g in graphs for s in g.run.plan.steps]
        assert all(isinstance(s, Launch) for s in steps)
        for got, want, same in zip(found, exact, eager, strict=True):
            scale = want.abs().max()
            error, its = ((x.double() - want).abs().max() / scale for x in (got, same))
            assert error <= 3 * its + 8 * torch.finfo(dtype).eps


def kinds(m: int, k: int, n: int, **options: Any) -> set[type]:
    torch._dynamo.reset()
    compiled = torch.compile(torch.mm, backend="tessera", dynamic=False, options=options)
    with recording() as graphs:
        compiled(torch.ones(m, k, device="cpu"), torch.ones(k, n, device="cpu"))
    return {type(s) for s in graphs[0].run.plan.steps}


def test_which_products_are_kernels():
    assert kinds(64, 64, 64) == {Launch}
    assert kinds(64, 64, 64, matmul="extern") == {Extern}
    assert kinds(1, 64, 64) == {Launch}
    torch._dynamo.reset()
    compiled = torch.compile(torch.mm, backend="tessera", dynamic=True)
    with recording() as graphs:
        compiled(torch.ones(4, 5, device="cpu"), torch.ones(5, 6, device="cpu"))
    assert {type(s) for s in graphs[0].run.plan.steps} == {Extern}


@pytest.mark.parametrize("scalar", [False, True])
def test_operands_that_are_expanded_along_k(scalar: bool):
    def f(x: Any, y: Any, z: Any) -> Any:
        return x.expand(8, 200) @ y.expand(200, 7), (z + 1) @ (y * 2).expand(200, 7), z @ z.T

    x, y = (torch.randn(()), torch.randn(())) if scalar else (torch.randn(8, 1), torch.randn(1, 7))
    given = [x, y, torch.randn(8, 1).expand(8, 200)]
    compiled = torch.compile(f, backend="tessera", dynamic=False, options={"matmul": "kernel"})
    with recording() as graphs:
        found = compiled(*given)
    assert {type(s) for s in graphs[0].run.plan.steps} == {Launch}
    for got, want in zip(found, f(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
