"""Graphs with tensors on a GPU and on the CPU: kernels get those of one device. The marked tests run such graphs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import tessera.torch  # noqa: F401, E402  registers the backend
from tessera.backends.compiler import GPUTarget  # noqa: E402
from tessera.graph.calls.executable import machine_of  # noqa: E402
from tessera.graph.passes import optimize  # noqa: E402
from tessera.graph.planning.plan import Extern, Launch  # noqa: E402
from tessera.graph.planning.planner import Planner  # noqa: E402
from tessera.graph.torch import measure  # noqa: E402
from tessera.graph.torch.importing import import_graph  # noqa: E402
from tessera.graph.torch.options import Options  # noqa: E402
from tests.graph.torch_kit import compare  # noqa: E402

GPU = machine_of(GPUTarget("cuda", 90, 32))


def steps_of(
    traced: Callable[..., Any], *devices: str, rows: int = 4
) -> tuple[list[str], list[str]]:
    """The externs and the kernels of a function of matrices on GPUs and numbers on the CPU, traced without a GPU."""
    with FakeTensorMode():
        given = [torch.empty(() if d == "cpu" else (rows, 5), device=d) for d in devices]
        graph = make_fx(lambda *x: tree_leaves(traced(*x)), tracing_mode="fake")(*given)
        imported = import_graph(graph, Options())
    assert imported.device == "cuda:0"
    optimize(imported.module)
    function: Any = next(iter(imported.module.body))
    steps = Planner(function, GPU).run().steps
    externs = [s.op.target for s in steps if isinstance(s, Extern)]
    assert len(steps) == len(externs) + sum(isinstance(s, Launch) for s in steps)
    return externs, [s.code.name for s in steps if isinstance(s, Launch)]


def scaled(x: Any, number: Any) -> Any:
    return torch.where(x > 0, x * number, number + x)


def selected(x: Any) -> Any:
    return torch.where(x > 0, x, torch.full((), 3.0, device="cpu"))


def with_constant(x: Any) -> Any:
    return torch.stack([x, x * 2]), torch.full((), 3.0, device="cpu")


def counted(x: Any, count: Any) -> Any:
    more = count + 1
    count.copy_(more)
    return x * 2


def summed(x: Any) -> Any:
    return x.exp().sum().cpu()


def test_numbers_of_the_cpu_are_copied_once():
    assert steps_of(scaled, "cuda", "cpu")[0] == ["tessera.move"]


def test_constants_of_the_cpu_are_part_of_kernels():
    externs, kernels = steps_of(selected, "cuda")
    assert externs == [] and len(kernels) == 1


def test_literals_are_part_of_kernels():
    number = torch.tensor(3.0, device="cpu")
    with FakeTensorMode() as mode:
        x = torch.empty(4, 5, device="cuda")
        fake = mode.from_tensor(number)
        graph = make_fx(lambda x, y: [x * y.clone()], tracing_mode="fake")(x, fake)
    (node,) = (n for n in graph.graph.nodes if n.target == "y_1")
    graph.register_buffer("number", number)
    with graph.graph.inserting_before(node):
        literal = graph.graph.get_attr("number")
        literal.meta["val"] = fake
    node.replace_all_uses_with(literal)
    graph.graph.erase_node(node)
    with mode:  # as when AOTAutograd calls a compiler
        imported = import_graph(graph, Options())
    assert imported.externs == [] and imported.constants == []


def test_a_constant_of_the_cpu_that_is_a_result_is_there():
    externs, _ = steps_of(with_constant, "cuda")
    assert externs == ["tessera.move"]


def test_what_is_on_the_cpu_is_computed_and_written_there():
    assert steps_of(counted, "cuda", "cpu")[0] == ["aten.add.Tensor", "tessera.write"]
    assert steps_of(summed, "cuda")[0] == ["aten._to_copy.default"]


def test_nothing_is_computed_by_kernels_without_programs():
    externs, kernels = steps_of(lambda x: (x + 1, x.flatten() * 2, x.sum(0)), "cuda", rows=0)
    assert externs == [] and len(kernels) == 3


def test_each_tensor_of_a_kernel_is_on_one_device():
    with FakeTensorMode():
        x = torch.empty(4, 5, device="cuda")
        graph = make_fx(lambda x: [x + 1], tracing_mode="fake")(x)
    imported = import_graph(graph, Options())
    function: Any = next(iter(imported.module.body))
    given = function.body.args[0].type
    function.body.args[0].type = type(given)(given.shape, given.elem, given.strides, "cpu")
    with pytest.raises(AssertionError, match="has tensors on cpu, cuda:0"):
        Planner(function, GPU).run()


# --- on a GPU -------------------------------------------------------------------------------------------------------
def gpu(*shape: int, **more: Any) -> Any:
    return torch.randn(*shape, device="cuda", **more)


@pytest.mark.gpu
@pytest.mark.parametrize("function", [scaled, counted])
def test_numbers_of_the_cpu(function: Any):
    compare(function, gpu(40, 50), torch.tensor(2.5))


@pytest.mark.gpu
@pytest.mark.parametrize("function", [selected, summed])
def test_results_on_either_device(function: Any):
    compare(function, gpu(40, 50))


@pytest.mark.gpu
def test_rows_by_indices_of_the_cpu():
    compare(lambda x, i: x[i] + 1, gpu(40, 50), torch.tensor([3, 1]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_training_of_convolutions(dtype: Any):
    w, b = gpu(6, 3, 3, 3, dtype=dtype, requires_grad=True), gpu(6, dtype=dtype, requires_grad=True)
    x = gpu(2, 3, 12, 13, dtype=dtype)
    graphs = compare(lambda x, w, b: F.conv2d(x, w, b).relu(), x, w, b, backward=True, scale=30.0)
    assert any("aten.sum.dim_IntList" in g.imported.lowered for g in graphs)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [(256, 256), (5000, 96), (100000, 8), (70, 3000)])
def test_sums_of_columns(rows: int, columns: int):
    def sums(x: Any, y: Any) -> Any:
        return x.sum(0), (x * y).sum(0), (x - y).amax(0)

    compare(sums, gpu(rows, columns), gpu(rows, columns), scale=100.0)


@pytest.mark.gpu
def test_tensors_without_elements():
    compare(lambda x: (x + 1, x.flatten() * 2, x.sum(0), x.T @ x), gpu(0, 50))


@pytest.mark.gpu
def test_literals_of_the_cpu():
    def rows(x: Any) -> Any:
        y = x.clone()
        y[1], y[:, 2] = 3, -1.5
        return y * torch.tensor(2.0)

    compare(rows, gpu(40, 50))


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True])
def test_products_with_tensor_maps_are_part_of_launch_sequences(dynamic: bool):
    a, b = gpu(64, 128, dtype=torch.float16), gpu(128, 256, dtype=torch.float16)
    compare(lambda a, b: ((a + 1) @ b).relu() * 2, a, b, dynamic=dynamic, scale=8.0)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_eager(dtype: Any, mask: bool):
    def attention(q: Any, k: Any, v: Any) -> Any:
        seen = torch.ones(20, 33, dtype=torch.bool, device="cuda").tril(2) if mask else None
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=seen) + 1

    q, k, v = (gpu(2, 4, n, 16, dtype=dtype, requires_grad=True) for n in (20, 33, 33))
    compare(attention, q, k, v, backward=True)
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_steps_of_optimizers(name: str):
    def trained(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(30, 20, device="cuda")
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        step: Any = torch.compile(optimizer.step, backend="tessera") if compiled else optimizer.step
        for k in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 30, device="cuda") * k).square().sum().backward()
            step()
        return [p.detach() for p in model.parameters()]

    torch._dynamo.reset()
    for found, wanted in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_recorded_graphs_run_again_with_other_numbers():
    def chain(x: Any, w: Any) -> Any:
        return F.layer_norm(x @ w, (64,)).exp().sum(1)

    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="tessera", mode="reduce-overhead")
    w = gpu(32, 64, requires_grad=True)
    for k in range(5):
        x = gpu(16, 32)
        torch.compiler.cudagraph_mark_step_begin()
        w.grad = None
        found = compiled(x, w)
        found.sum().backward()
        assert w.grad is not None
        found, gradient = found.detach().clone(), w.grad.clone()
        w.grad = None
        wanted = chain(x, w)
        wanted.sum().backward()
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-3, atol=1e-3, msg=f"call {k}")
        torch.testing.assert_close(gradient, w.grad, rtol=1e-2, atol=1e-2)


def test_the_roofline_of_a_gpu_is_that_of_the_table(monkeypatch: pytest.MonkeyPatch):
    """By its data sheet an H200 does 989 Tflop/s of bf16 products at the highest clock; here at that under load."""
    about = SimpleNamespace(major=9, minor=0, name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr(measure, "TorchHost", lambda *args: None)
    monkeypatch.setattr(measure, "bandwidth_of", lambda *args: 4e12)
    peak = measure.peak_of.__wrapped__("cuda:0")
    assert peak.bandwidth == 4e12
    assert 55e12 < peak.flops < 67e12 and 900e12 < peak.matmul_flops < 989e12
    about.multi_processor_count = 66
    assert measure.peak_of.__wrapped__("cuda:0").flops == peak.flops / 2
