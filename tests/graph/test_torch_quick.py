"""Externs are called by functions of torch that read their arguments faster, where these do the same."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from tessera.graph.torch.quick import quick  # noqa: E402

aten = torch.ops.aten
WINDOWS = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def image() -> Any:
    torch.manual_seed(0)
    return torch.randn(2, 3, 5, 5)


CASES: dict[Any, Any] = {
    aten.convolution.default: lambda: (image(), torch.randn(4, 3, 3, 3), None, *WINDOWS),
    aten.mm.default: lambda: (torch.randn(3, 4), torch.randn(4, 5)),
    aten.topk.default: lambda: (image(), 2),
    aten.max_pool2d_with_indices.default: lambda: (image(), [2, 2]),
    aten.linalg_cholesky_ex.default: lambda: (torch.eye(3) + 1,),
}


@pytest.mark.parametrize("target", CASES)
def test_the_same_results(target: Any):
    given = CASES[target]()
    assert quick(target) is not target
    results = [f(*given) for f in (quick(target), target)]
    ours, theirs = (list(r) if isinstance(r, tuple) else [r] for r in results)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
        assert mine.stride() == other.stride()


OTHERS = (
    aten.sort.stable,  # another overload
    aten.index_put.default,  # the same arguments may mean another one
    aten.full.default,  # makes a tensor: torch's function looks at the default type
    aten.convolution_backward.default,  # torch has no function for it
)


@pytest.mark.parametrize("target", [*OTHERS, len])
def test_operations_that_are_called_themselves(target: Any):
    assert quick(target) is target
