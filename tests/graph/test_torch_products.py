"""Which products of a program on an H200 are kernels of ours: the rule, asked with fakes of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tessera.backends.compiler import GPUTarget  # noqa: E402
from tessera.graph.calls.executable import machine_of  # noqa: E402
from tessera.graph.ir.ops import ExternOp, MatmulOp  # noqa: E402
from tessera.graph.passes import cost  # noqa: E402
from tessera.graph.planning.plan import Extern  # noqa: E402
from tessera.graph.torch.importing import import_graph  # noqa: E402
from tessera.graph.torch.lowering import matmul  # noqa: E402
from tessera.graph.torch.options import Options  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402
from tessera.ops import FuncOp  # noqa: E402
from tests.graph.torch_kit import compare  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="fakes of a GPU that is not there")  # fmt: skip


@pytest.fixture
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    found: int = getattr(request, "param", 90)
    machine = machine_of(GPUTarget("cuda", found, 32))
    monkeypatch.setattr(matmul, "_machine", lambda device: machine)
    return found


def imported(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any, **options: Any) -> FuncOp:
    with FakeTensorMode():
        given = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
        graph = make_fx(lambda *x: [f(*x)], tracing_mode="fake")(*given)
    function = import_graph(graph, Options(**options)).module.functions[0]
    assert isinstance(function, FuncOp)
    return function


def products(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = torch.bfloat16) -> int:
    """How many products of a function are kernels of ours."""
    function = imported(f, *shapes, dtype=dtype)
    return sum(isinstance(op, MatmulOp) for op in function.walk())


def calls(
    f: Callable[..., Any],
    *shapes: tuple[int, ...],
    dtype: Any = torch.float32,
    **options: Any,
) -> list[str]:
    """The functions of torch's that a function is made of."""
    function = imported(f, *shapes, dtype=dtype, **options)
    return [op.target.split(".")[1] for op in function.walk() if isinstance(op, ExternOp)]


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


def test_a_product_without_sums_is_a_loop(arch: int, monkeypatch: pytest.MonkeyPatch):
    columns = ((2048, 1), (512, 1), (512,))
    gelu = lambda x, w, b: F.gelu(F.linear(x, w, b))
    assert calls(gelu, *columns) == calls(lambda x, y: x @ y, (4, 8, 1), (4, 1, 8)) == []
    assert calls(gelu, *columns, matmul="extern") == ["addmm"]
    monkeypatch.setenv("TESSERA_DISABLE", "graph-own-products")
    assert calls(gelu, *columns) != []


FEW = ((128, 512), (512, 512), (512,))


def test_products_of_few_rows_are_computed_without_their_bias(arch: int):
    assert calls(F.linear, *FEW) == ["mm"]
    assert calls(lambda x, w, b: F.linear(x, w, b).view(8, 16, 512).relu(), *FEW) == ["mm"]
    assert calls(lambda x, w, b: torch.addmm(b, x, w, beta=2, alpha=3), *FEW) == ["mm"]


def test_a_small_product_keeps_its_bias_but_where_its_result_is_read_element_by_element(arch: int):
    small = ((8, 64), (32, 64), (32,))
    assert calls(F.linear, *small) == ["addmm"]
    assert calls(lambda x, w, b: F.linear(x, w, b).softmax(-1), *small)[0] == "addmm"
    assert calls(lambda x, w, b: F.gelu(F.linear(x, w, b)), *small) == ["mm"]


def test_of_many_rows_a_bias_is_added_by_what_reads_the_result(arch: int):
    """Through views that say which elements a loop loads, too; where nothing else reads it, and no library."""
    many = ((2048, 512), *FEW[1:])
    heads = lambda x, w, b: F.linear(x, w, b).view(8, 256, 8, 64).transpose(1, 2)
    assert calls(lambda x, w, b: F.linear(x, w, b).relu(), *many) == ["mm"]
    assert calls(lambda x, w, b: heads(x, w, b) * 0.125, *many) == ["mm"]
    assert calls(lambda x, w, b: heads(x, w, b).clone(), *many) == ["mm"]
    assert calls(heads, *many) == ["addmm"]
    assert calls(lambda x, w, b: heads(x, w, b).narrow(-1, 0, 32).exp(), *many) == ["mm"]
    both = lambda x, w, b: (y := F.linear(x, w, b)).relu() + y @ w
    assert calls(both, *many) == ["addmm", "mm"]


def test_other_products_keep_their_bias(arch: int, monkeypatch: pytest.MonkeyPatch):
    assert calls(F.linear, (129, 512), *FEW[1:]) == ["addmm"]
    assert calls(F.linear, (15, 512), *FEW[1:]) == ["addmm"]
    assert calls(lambda x, w, b: F.linear(x, w, b).softmax(-1), (257, 512), *FEW[1:])[0] == "addmm"
    assert calls(F.linear, (0, 512), *FEW[1:]) == []
    assert calls(F.linear, (16, 512), *FEW[1:], dtype=torch.bfloat16) == ["addmm"]
    assert calls(F.linear, *FEW, dtype=torch.float64) == ["addmm"]
    assert calls(F.linear, *FEW, matmul="extern") == ["addmm"]
    monkeypatch.setattr(matmul, "_precision", lambda a: "tf32")
    assert calls(F.linear, *FEW) == ["addmm"]


def test_it_can_be_switched_off(arch: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", "graph-split-addmm")
    assert calls(F.linear, *FEW) == ["addmm"]


def test_numbers_are_those_of_eager(monkeypatch: pytest.MonkeyPatch):
    """As a GPU's graph, on this machine's CPU: bias of any shape, factors, operands in any order of dimensions."""
    monkeypatch.setattr(matmul, "profitable", lambda *_: False)
    monkeypatch.setattr(cost, "machine_of", lambda device: replace(cost.CPU, few_rows=128))
    x, w = torch.randn(8, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    for bias in (torch.randn(5), torch.randn(8, 5), torch.randn(8, 1), torch.randn(1)):

        def f(x: Any, w: Any, b: Any = bias) -> Any:
            y = torch.addmm(b, x, w, beta=0.5, alpha=-2).relu()
            return y + torch.addmm(b, x[:, [1, 0, 2, 3, 5, 4]], w.flip(0), beta=0).sin()

        graphs = compare(f, x, w)
        assert {
            op.target for op in graphs[0].imported.module.walk() if isinstance(op, ExternOp)
        } >= {"aten.mm.default"}


# --- convolutions of images of one element ----------------------------------------------------------------------------
POINT = ((8, 576, 1, 1), (144, 576, 1, 1), (144,))


def test_convolutions_of_single_elements_stay_calls_on_gpus(arch: int):
    assert calls(F.conv2d, *POINT) == ["convolution"]


@pytest.mark.parametrize("off", ["", "graph-point-convolutions"])
def test_convolutions_of_single_elements_are_products(monkeypatch: pytest.MonkeyPatch, off: str):
    monkeypatch.setenv("TESSERA_DISABLE", off)

    def externs(f: Any, *shapes: tuple[int, ...]) -> list[str]:
        torch._dynamo.reset()
        with recording() as records:
            torch.compile(f, backend="tessera")(*(torch.randn(s) for s in shapes))
        steps = [s for r in records for s in r.run.plan.steps]
        return [
            s.op.target.removeprefix("aten.").split(".")[0] for s in steps if isinstance(s, Extern)
        ]

    product = ["convolution"] if off else []
    assert externs(F.conv2d, *POINT) == product
    assert externs(lambda x, w: F.conv2d(x, w, stride=2).relu(), *POINT[:2]) == product
    assert externs(F.conv1d, (8, 576, 1), (144, 576, 1), (144,)) == product
    for shapes in (((8, 576, 2, 1), *POINT[1:]), ((8, 576, 3, 3), (144, 576, 3, 3), (144,))):
        assert externs(F.conv2d, *shapes) == ["convolution"]
    assert externs(lambda x, w, b: F.conv2d(x, w, b, padding=1), *POINT) == ["convolution"]
    halves = POINT[0], (144, 288, 1, 1)
    assert externs(lambda x, w: F.conv2d(x, w, groups=2), *halves) == ["convolution"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_single_elements_give_what_convolutions_give(dtype: Any):
    """Squeeze and excitation, with gradients, in either order of dimensions."""
    a, b = torch.nn.Conv2d(12, 4, 1).to(dtype), torch.nn.Conv2d(4, 12, 1, bias=False).to(dtype)

    def f(x: Any) -> Any:
        return x * F.hardsigmoid(b(F.relu(a(x.mean((2, 3), keepdim=True)))))

    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(3, 12, 5, 4, dtype=dtype).to(memory_format=layout).requires_grad_()
        compare(f, x)
