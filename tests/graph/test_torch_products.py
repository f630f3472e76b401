"""Which products of a program on an H200 are kernels of ours: the rule, asked with fakes of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tessera.backends.compiler import GPUTarget  # noqa: E402
from tessera.graph.calls.executable import machine_of  # noqa: E402
from tessera.graph.ir.ops import MatmulOp  # noqa: E402
from tessera.graph.torch.importing import import_graph  # noqa: E402
from tessera.graph.torch.lowering import matmul  # noqa: E402
from tessera.graph.torch.options import Options  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="fakes of a GPU that is not there")  # fmt: skip


@pytest.fixture
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    found: int = getattr(request, "param", 90)
    machine = machine_of(GPUTarget("cuda", found, 32))
    monkeypatch.setattr(matmul, "_machine", lambda device: machine)
    return found


def products(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = torch.bfloat16) -> int:
    """How many products of a function are kernels of ours."""
    with FakeTensorMode():
        given = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
        graph = make_fx(lambda *x: [f(*x)], tracing_mode="fake")(*given)
    function = import_graph(graph, Options()).module.functions[0]
    return sum(isinstance(op, MatmulOp) for op in function.walk())


LAYER = ((2048, 512), (2048, 512), (2048,))


def test_a_layer_with_what_follows_it_is_a_kernel(arch: int):
    assert products(lambda x, w, b: F.gelu(F.linear(x, w, b)), *LAYER) == 1
    assert (
        products(lambda x, w, b: F.linear(x.view(4, 512, 512), w, b).view(2048, -1).relu(), *LAYER)
        == 1
    )
    assert products(lambda x, w, b: (x @ w.t()).float(), *LAYER) == 1


def test_a_product_that_nothing_follows_is_eagers_where_that_is_as_fast(arch: int):
    assert products(lambda x, w, b: F.linear(x, w, b), *LAYER) == 0
    assert products(lambda x, w, b: F.linear(x, w, b).softmax(-1), *LAYER) == 0


def test_other_products_stay_eagers(arch: int):
    gelu = lambda x, w, b: F.gelu(F.linear(x, w, b))
    assert products(gelu, *LAYER, dtype=torch.float32) == 0
    assert products(gelu, (16, 512), *LAYER[1:]) == 0  # a few rows
    assert (
        products(gelu, (2048, 500), (2048, 500), (2048,)) == 0
    )  # rows begin inside of cache lines
    assert (
        products(gelu, (2048, 3072), (768, 3072), (768,)) == 0
    )  # tiles of 128 x 96 suit it better


@pytest.mark.parametrize("arch", [80, 100], indirect=True)
def test_other_gpus_are_not_estimated(arch: int):
    assert products(lambda x, w, b: F.gelu(F.linear(x, w, b)), *LAYER) == 0


def test_own_products_can_be_switched_off(arch: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", "graph-own-products")
    assert products(lambda x, w, b: F.gelu(F.linear(x, w, b)), *LAYER) == 0
