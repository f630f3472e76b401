"""Compares functions and models compiled with backend="tessera" with eager: values, gradients, strides, mutation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch.utils._pytree import tree_flatten, tree_map

import tessera.torch  # noqa: F401  registers the backend
from tessera.graph.torch.records import GraphRecord, recording

TOLERANCES = {
    torch.float32: (2e-5, 2e-5), torch.float64: (1e-7, 1e-7), torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2),
    torch.complex64: (2e-5, 2e-5), torch.complex128: (1e-7, 1e-7),
}  # fmt: skip


def copied(values: Any) -> Any:
    """Copies that keep strides and what requires a gradient; a tensor that occurs twice stays one."""
    seen: dict[int, Any] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in seen:
            seen[id(x)] = _copy(x)
        return seen[id(x)]

    return tree_map(copy, values)


def _copy(x: torch.Tensor) -> torch.Tensor:
    if x.layout != torch.strided:
        return x.detach().clone().requires_grad_(x.requires_grad)
    span = (
        1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    )
    base = x.detach().as_strided((span,), (1,), x.storage_offset()).clone()
    same = base.as_strided(x.shape, x.stride(), 0) if x.numel() else x.detach().clone()
    return same.requires_grad_(x.requires_grad)


def tensors(values: Any) -> list[Any]:
    return [x for x in tree_flatten(values)[0] if isinstance(x, torch.Tensor)]


def difference(found: Any, expected: Any, strides: bool = True, scale: float = 1.0) -> str | None:
    """What is not equal, in a line; None when all is."""
    a, b = tree_flatten(found)[0], tree_flatten(expected)[0]
    if len(a) != len(b):
        return f"{len(a)} results instead of {len(b)}"
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, torch.Tensor):
            if x != y and not (x != x and y != y):
                return f"{x} instead of {y}"
            continue
        if strides and y.layout == torch.strided and y.numel() and x.stride() != y.stride():
            return f"strides {tuple(x.stride())} instead of {tuple(y.stride())} (shape {tuple(y.shape)})"
        rtol, atol = TOLERANCES.get(y.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                x, y, rtol=rtol * scale, atol=atol * scale, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return None


def gradients(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """The outputs, and the gradients of the inputs for a fixed weighting of the outputs."""
    out = function(*args, **kwargs)
    total: Any = 0
    for x in tensors(out):
        if x.requires_grad:
            weights = torch.linspace(-1, 1, x.numel(), dtype=torch.float64, device=x.device)
            product = x * weights.reshape(x.shape).to(x.dtype)
            total = total + (product.real if product.is_complex() else product).sum()
    inputs = [x for x in tensors((args, kwargs)) if x.requires_grad]
    if not isinstance(total, torch.Tensor) or not inputs:
        return out, []
    return out, list(torch.autograd.grad(total, inputs, allow_unused=True))


def detached(values: Any) -> Any:
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, values)


def compare(
    function: Callable[..., Any], *args: Any, backward: bool = False, options: dict[str, Any] | None = None,
    strides: bool = True, scale: float = 1.0, **settings: Any,
) -> list[GraphRecord]:  # fmt: skip
    """Fail where the compiled function differs from eager: outputs, gradients, inputs after the call. The graphs."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tessera", options=options, **settings)
    theirs, ours = copied(args), copied(args)
    with recording() as graphs:
        pairs = []
        for call, given in ((function, theirs), (compiled, ours)):
            torch.manual_seed(0)
            found = gradients(call, given, {}) if backward else (call(*given), [])
            pairs.append((detached(found[0]), found[1], detached(given)))
    why = difference(pairs[1], pairs[0], strides, scale)
    assert why is None, why
    return graphs


def externs(graphs: Sequence[GraphRecord]) -> set[str]:
    """The operations that eager ran."""
    return {name for graph in graphs for name, _ in graph.externs}
