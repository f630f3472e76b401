"""`torch.compile(..., backend="tessera")` as a whole: the door, shapes, strides, mutation, aliases, random numbers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from tessera.errors import InvalidOption, NoDeviceError, UnknownOption  # noqa: E402
from tessera.graph.torch.options import options_of  # noqa: E402
from tests.graph.torch_kit import compare, externs  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)


def softmax_like(x: Any) -> Any:
    return (x - x.amax(-1, keepdim=True)).exp() / x.sum(-1, keepdim=True)


# --- the door -----------------------------------------------------------------------------------------------------
def test_the_backend_is_registered():
    assert "tessera" in torch._dynamo.list_backends()


def test_options_are_checked():
    with pytest.raises(UnknownOption, match="randm"):
        options_of(None, {"randm": "eager"})
    with pytest.raises(InvalidOption, match="philox or eager"):
        options_of(None, {"random": "mine"})
    with pytest.raises(InvalidOption, match="max-autotune"):
        options_of("fastest", None)
    assert options_of("max-autotune", {"random": "eager"}).random == "eager"


def test_options_tell_what_was_meant():
    with pytest.raises(UnknownOption, match="did you mean `random`"):
        options_of(None, {"randm": "eager"})
    with pytest.raises(UnknownOption, match=r"the options are: .*kernels"):
        options_of(None, {"qqq": 1})
    with pytest.raises(InvalidOption, match="did you mean `reduce-overhead`"):
        options_of("reduce-overheads", None)


def test_a_device_without_a_back_end_is_an_error():
    from tessera.graph.torch.backend import check_device

    check_device(torch.device("cpu"))
    check_device(torch.device("meta"))  # what has no elements runs by eager
    with pytest.raises(NoDeviceError, match=r"xpu:1(.|\n)*CUDA and CPUs"):
        check_device(torch.device("xpu:1"))
    if not torch.cuda.is_available():
        with pytest.raises(NoDeviceError, match="no CUDA device"):
            check_device(torch.device("cuda:0"))


def test_a_wrong_option_reaches_the_user():
    compiled = torch.compile(lambda x: x + 1, backend="tessera", options={"kernel": "none"})
    with pytest.raises(Exception, match="did you mean `kernels`"):
        compiled(torch.ones(3))


@pytest.mark.parametrize("kernels", ["compiled", "interpreted", "none"])
def test_who_runs_the_operations(kernels: str):
    graphs = compare(softmax_like, torch.randn(5, 7), options={"kernels": kernels}, fullgraph=True)
    assert (externs(graphs) == set()) == (kernels != "none")


def test_externs_that_repeat_elements():
    """No memory with a stride of 0 can be written as it is."""

    def repeated(x: Any) -> Any:
        return x[:, None].expand(6, 3, 9), x.sum(-1, keepdim=True).expand_as(x)

    compare(repeated, torch.randn(6, 9), options={"kernels": "none"})


@pytest.mark.parametrize("wrapper", ["native", "python"])
def test_calls_in_native_code_and_in_python(wrapper: str):
    def exchanged(x: Any, y: Any, z: Any) -> Any:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)
        return softmax_like(x @ y) @ z, z.sum(0)

    inputs = [torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 0)]
    compare(exchanged, *inputs, options={"wrapper": wrapper}, fullgraph=True)


# --- shapes and strides -------------------------------------------------------------------------------------------
LAYOUTS = {
    "transposed": lambda: torch.randn(9, 6).t(),
    "a slice": lambda: torch.randn(8, 30)[1:7, 3:21:2],
    "expanded": lambda: torch.randn(6, 1).expand(6, 9),
    "channels last": lambda: torch.randn(2, 3, 6, 9).to(memory_format=torch.channels_last),
    "no rows": lambda: torch.randn(0, 9),
    "no dimensions": lambda: torch.randn(()),
    "offset": lambda: torch.randn(100)[7:61].view(6, 9),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_layouts_of_inputs(layout: str, dynamic: bool):
    def f(x: Any) -> Any:
        y = x * 2 + 1
        return y, y.sum(), x.transpose(0, -1) - 1 if x.dim() else x.exp(), (x + y).contiguous()

    compare(f, LAYOUTS[layout](), dynamic=dynamic)


def test_views_of_computed_values_have_their_strides():
    def f(x: Any) -> Any:
        y = x.exp()
        return (
            y.t(),
            y[1:],
            y.view(3, 2, 8).permute(2, 0, 1),
            y.unsqueeze(1).expand(6, 4, 8),
            y.diagonal(),
        )

    compare(f, torch.randn(6, 8))


def test_sizes_of_zero():
    def f(x: Any, y: Any) -> Any:
        return x.sum(0), x.sum(1), torch.cat([x, y]), x.t() @ x, (x + 1).amax(1), x.prod()

    compare(f, torch.randn(0, 5), torch.randn(3, 5))
    compare(lambda x: (x + 1, x.t() * 2, x.flatten().exp()), torch.randn(0, 0))


def test_two_compilations_serve_all_sizes():
    counter = CompileCounterWithBackend("tessera")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: softmax_like(x) * x.shape[0], backend=counter)
    for n, m in ((4, 9), (5, 9), (17, 3), (33, 65), (128, 100)):
        x = torch.rand(n, m) + 1
        torch.testing.assert_close(compiled(x), softmax_like(x) * n)
    assert counter.frame_count <= 3  # static, rows dynamic, columns dynamic


def test_symbolic_views_and_padding():
    def f(x: Any) -> Any:
        n = x.shape[0]
        return (
            x.view(-1, 2).sum(1),
            F.pad(x, (1, n), value=2.0),
            x[: n // 2],
            torch.arange(n, device=x.device) * x.shape[1],
            x.flip(0),
        )

    for n in (4, 6, 10):
        compare(f, torch.randn(n, 6), dynamic=True)


# --- mutation and aliases -----------------------------------------------------------------------------------------
def test_inputs_are_changed():
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        y[1:].mul_(x[1:])
        return x * y

    compare(f, torch.randn(4, 5), torch.randn(4, 5))


def test_a_changed_input_is_read_before():
    def f(x: Any) -> Any:
        before = x.sum(0)
        x.copy_(x.flip(0))
        return before, x + before

    compare(f, torch.randn(6, 3))


def test_outputs_that_alias():
    def f(x: Any) -> Any:
        y = x + 1
        return y, y.t(), y, x, x[2:]

    x = torch.randn(4, 4)
    compare(f, x)
    torch._dynamo.reset()
    out = torch.compile(f, backend="tessera")(x)
    assert out[3] is x
    assert out[4]._base is x or out[4].data_ptr() == x[2:].data_ptr()
    assert out[1].data_ptr() == out[0].data_ptr()


def test_an_input_given_twice():
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y

    x = torch.randn(5)
    compare(f, x, x)


def test_state_of_a_module_is_updated():
    model = torch.nn.BatchNorm1d(6)
    other = torch.nn.BatchNorm1d(6)
    torch._dynamo.reset()
    compiled = torch.compile(other, backend="tessera")
    for _ in range(2):
        x = torch.randn(8, 6)
        torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(other.state_dict(), model.state_dict())


# --- graphs -------------------------------------------------------------------------------------------------------
def test_graph_breaks():
    def f(x: Any) -> Any:
        y = x.exp()
        torch._dynamo.graph_break()
        return y.sum() * x

    graphs = compare(f, torch.randn(7))
    assert len(graphs) == 2


def test_constants_of_the_graph():
    table = torch.tensor([1.0, 3.0, 5.0])
    compare(lambda x: x * torch.tensor([2.0, 4.0, 8.0], device=x.device) + table, torch.randn(4, 3))


def test_without_gradients_and_with_autocast():
    linear = torch.nn.Linear(6, 5)

    def f(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(linear(x))

    with torch.no_grad():
        compare(f, torch.randn(4, 6))


def test_complex_numbers_are_externs():
    graphs = compare(lambda x: torch.fft.rfft(x).abs() + 1, torch.randn(16))
    assert any(name.startswith("aten._fft_r2c") for name in externs(graphs))


# --- types --------------------------------------------------------------------------------------------------------
def test_types_are_promoted_as_in_eager():
    def f(a: Any, b: Any, c: Any, d: Any) -> Any:
        return (
            a + b,
            a / b,
            b * 2.5,
            c + 1,
            c * a,
            d + d,
            d & (a > 0),
            b // 3,
            a % 2,
            b**2,
            c.sum(),
            b.sum(),
            d.sum(),
        )

    compare(
        f, torch.randn(8), torch.randint(-9, 9, (8,)), torch.randn(8).bfloat16(), torch.rand(8) > 0.5
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_round_after_each_operation(dtype: Any):
    x = torch.randn(64).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: x * x + 1,
        backend="tessera",
        options={"kernels": "interpreted", "numerics": "eager"},
    )
    assert torch.equal(compiled(x), x * x + 1)


def test_integers_overflow_and_divide_as_in_eager():
    a = torch.tensor([127, -128, 100, -7, 7], dtype=torch.int8)
    b = torch.tensor([1, 3, 100, 2, -2], dtype=torch.int8)
    compare(
        lambda a, b: (
            a + b,
            a * b,
            a // b,
            a % b,
            torch.div(a, b, rounding_mode="trunc"),
            a << 1,
            a >> 2,
        ),
        a,
        b,
    )


def test_nan_and_infinities():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3.0])

    def f(x: Any) -> Any:
        return (
            x.clamp(-1, 1),
            x.relu(),
            x.amax(),
            x.argmax(),
            torch.maximum(x, x.flip(0)),
            x.isnan(),
            x.sign(),
            x.isinf(),
        )

    compare(f, x)


# --- random numbers -----------------------------------------------------------------------------------------------
def test_random_numbers_follow_the_seed():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: (F.dropout(x, 0.25), torch.rand_like(x), torch.randn_like(x)), backend="tessera"
    )
    x = torch.ones(100_000)
    torch.manual_seed(5)
    first = compiled(x)
    second = compiled(x)
    torch.manual_seed(5)
    again = compiled(x)
    for a, b, c in zip(first, again, second, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    dropped, uniform, normal = first
    assert abs((dropped == 0).float().mean().item() - 0.25) < 0.01
    assert abs(dropped.mean().item() - 1) < 0.02
    assert abs(uniform.mean().item() - 0.5) < 0.01
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02


def test_eagers_random_numbers_on_request():
    compare(
        lambda x: F.dropout(x, 0.5) + torch.randn_like(x),
        torch.ones(1000),
        options={"random": "eager"},
    )


def test_dropout_in_training_keeps_its_mask():
    torch._dynamo.reset()
    x = torch.ones(1000, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x * 1, 0.5), backend="tessera")(x)
    y.sum().backward()
    assert torch.equal((y != 0), (x.grad != 0))


# --- faults -------------------------------------------------------------------------------------------------------
def test_no_warning_is_given():
    torch._dynamo.reset()  # whose first call imports parts of torch that warn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(lambda x: x.softmax(-1), torch.randn(3, 4))


def test_explain_tells_kernels_externs_and_breaks():
    import tessera.graph

    def f(x: Any, w: Any) -> Any:
        y = (x @ w).softmax(-1)
        torch._dynamo.graph_break()
        return y * 2

    options = {"matmul": "extern"}
    report = tessera.graph.explain(f, torch.randn(4, 6), torch.randn(6, 5), options=options)
    assert len(report.graphs) == 2
    assert report.graphs[0].externs == [("aten.mm.default", "the options say so", 1)]
    assert report.graphs[0].operations >= 4
    assert report.graphs[1].peak_bytes >= 4 * 5 * 4
    assert len(report.graphs[1].kernels) == 1
    assert len(report.graph_breaks) == 1
    assert "extern aten.mm.default: the options say so" in str(report)
    assert '"purpose": "inference"' in report.json()


def test_explain_measures_steps_memory_and_numbers(tmp_path: Path):
    import tessera.graph

    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Softmax(-1)
    )
    page = tmp_path / "report.html"
    report = tessera.graph.explain(model, torch.randn(16, 32), html=str(page))
    assert report.notes == []
    assert [g.purpose for g in report.graphs] == ["forward", "backward"]
    for graph in report.graphs:
        assert all(s.seconds and s.roofline > 0 for s in graph.steps)
        assert graph.bytes >= graph.least_bytes / 2
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [d.output for d in report.distances] == [
        "output 0",
        *(f"gradient of {n}" for n in names),
    ]
    assert all(d.eager < 1e-4 and d.exact < 1e-4 for d in report.distances)
    assert report.memory is not None and report.memory[1] >= 16 * 64 * 4
    assert page.read_text().count("<svg") == 2
    assert "computes aten.gelu" in page.read_text()
    assert all(p.grad is None for p in model.parameters())


def test_explain_names_the_operations_in_each_kernel():
    import tessera.graph

    def f(x: Any) -> Any:
        return torch.nn.functional.gelu(x.sort()[0]).softmax(-1), x.cos()

    report = tessera.graph.explain(f, torch.randn(16, 32), measure=False, options={"fuse": False})
    (graph,) = report.graphs
    assert sum(names == ("aten.cos",) for names in graph.origins.values()) == 1
    report = tessera.graph.explain(f, torch.randn(16, 32), measure=False)
    (graph,) = report.graphs
    assert graph.origins.keys() == set(graph.kernels)
    every = {name for names in graph.origins.values() for name in names}
    assert every == {"aten.sort", "aten.gelu", "aten._softmax", "aten.cos"}
    assert any({"aten.gelu", "aten._softmax"} <= {*names} for names in graph.origins.values())
    assert "    computes aten." in str(report)


def test_explain_keeps_what_a_model_cannot_do_as_notes():
    import tessera.graph

    def only_single(x: Any) -> Any:
        if x.dtype == torch.float64:
            raise TypeError("fp32 only")
        return x * 2

    report = tessera.graph.explain(only_single, torch.randn(4))
    assert any("float64" in note for note in report.notes)
    assert report.distances[0].exact is None
    assert tessera.graph.explain(only_single, torch.randn(4), measure=False).memory is None


def test_dump_writes_graphs_that_run_by_themselves(tmp_path: Path):
    with pytest.raises(InvalidOption, match="dump"):
        options_of(None, {"dump": 3})
    torch._dynamo.reset()
    x = torch.randn(6, 8, requires_grad=True)
    f = torch.compile(softmax_like, backend="tessera", options={"dump": str(tmp_path)})
    f(x).sum().backward()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0-forward", "1-backward"]
    for folder in tmp_path.iterdir():
        done = subprocess.run([sys.executable, folder / "run.py"], capture_output=True, text=True)
        assert done.returncode == 0 and "right" in done.stdout, done.stderr


def test_a_graph_that_does_not_compile_is_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    from tessera.config import knobs
    from tessera.graph.torch import backend

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of fusion")

    monkeypatch.setattr(backend, "optimize", broken)
    folders = SimpleNamespace(mkdtemp=lambda prefix: str(tmp_path))
    monkeypatch.setattr(backend, "tempfile", folders)
    x = torch.randn(3, 4)
    with pytest.raises(Exception, match="a fault of fusion"):
        compare(softmax_like, x, options={"fuse": True})
    monkeypatch.setattr(knobs.compilation, "strict", False)
    with pytest.warns(backend.GraphWarning, match="without fusion") as caught:
        graphs = compare(softmax_like, x, options={"fuse": True})
    assert len(caught) == 1
    assert graphs[0].imported is not None
    assert "graph.loop" in (tmp_path / "graph.gph").read_text()
    monkeypatch.setattr(backend, "compile_executable", broken)
    with pytest.warns(backend.GraphWarning, match="eager runs it"):
        graphs = compare(softmax_like, x, options={"fuse": False})
    assert externs(graphs) == {"the whole graph"}


def test_equal_keys_stay_in_order_when_sorted_stably():
    x = torch.randint(0, 5, (4, 40)).float()
    compare(lambda x: (x.sort(dim=1, stable=True), x.sort(dim=0, stable=True, descending=True)), x)


@pytest.mark.parametrize("shape", [(6, 20), (3, 5000), (4, 1)])
def test_the_largest_element_is_found_by_one_walk_through_the_row(shape: tuple[int, ...]):
    x = torch.randn(shape)
    x[1, 0] = float("nan")
    graphs = compare(lambda x: (x.topk(1), x.t().topk(1, dim=0, sorted=False)), x)
    assert externs(graphs) == set()
    graphs = compare(lambda x: x.topk(1, largest=False), x)
    assert (externs(graphs) == set()) == (shape[1] < 5000)


def test_longer_rows_are_sorted_by_kernels_but_for_a_few_elements():
    x = torch.randint(0, 50, (300, 3)).float()
    graphs = compare(
        lambda x: (x.sort(dim=0, stable=True), torch.argsort(x.bfloat16(), dim=0, stable=True)), x
    )
    assert not externs(graphs)
    graphs = compare(lambda x: x.topk(20, 0)[0] + 1, x)
    assert externs(graphs) == (set() if x.is_cuda else {"aten.topk.default"})
