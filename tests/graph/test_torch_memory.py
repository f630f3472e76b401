"""The memory of models: what the plan says is what torch's allocator sees, training steps hold no more than eager's,
and backward graphs write only to saved tensors that nobody else has. The plan is that of GPUs, run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tessera.torch  # noqa: E402, F401  registers the backend
from tessera.backends.compiler import GPUTarget  # noqa: E402
from tessera.graph.calls import executable  # noqa: E402
from tessera.graph.passes import cost  # noqa: E402
from tessera.graph.planning.plan import INPUT  # noqa: E402
from tessera.graph.torch.backend import executable_of  # noqa: E402
from tessera.graph.torch.donate import Donations  # noqa: E402
from tessera.graph.torch.host import TorchHost  # noqa: E402
from tessera.graph.torch.importing import import_graph  # noqa: E402
from tessera.graph.torch.measure import peak_bytes  # noqa: E402
from tessera.graph.torch.options import Options  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402
from tests.graph.blocks import Block  # noqa: E402

OPTIONS = {"matmul": "extern"}  # as on GPUs


@pytest.fixture(autouse=True)
def plan_of_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few threads, as each holds scratch of its own in the library's attention."""
    torch._dynamo.reset()
    machine = executable.machine_of(GPUTarget("cuda", 90, 32))
    monkeypatch.setattr(executable, "machine_of", lambda target: machine)
    monkeypatch.setattr(cost, "machine_of", lambda device: cost.GPU)
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield
    torch.set_num_threads(threads)


def perceptrons() -> nn.Module:
    layers = [(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(2)]
    return nn.Sequential(*(layer for group in layers for layer in group))


MODELS = {
    "perceptrons": (perceptrons, (256, 64)),
    "transformer": (lambda: Block(64, 2, False), (2, 64, 64)),
    "attention": (lambda: Block(64, 2, True), (2, 64, 64)),
}


def made(name: str) -> tuple[Any, Any, Any]:
    """A model, the same compiled, and what it is called with."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    module = make()
    return module, torch.compile(module, backend="tessera", options=OPTIONS), torch.randn(shape)


def training_step(run: Any, module: nn.Module, x: Any) -> Any:
    """A step, which gives the loss and the gradients: it keeps none, of which the profiler would see the end alone."""

    def step() -> Any:
        loss = run(x).square().mean()
        loss.backward()
        grads = [p.grad for p in module.parameters()]
        for p in module.parameters():
            p.grad = None
        return loss.detach(), grads

    return step


@pytest.mark.parametrize("name", MODELS)
def test_training_steps_hold_no_more_than_eager(name: str):
    module, compiled, x = made(name)
    eager, ours = (training_step(run, module, x) for run in (module, compiled))
    with recording() as records:
        for mine, theirs in zip(ours(), eager(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert any(r.run.plan.donated for r in records if r.purpose == "backward")
    most = [peak_bytes(step)[0] for step in (ours, eager)]
    assert most[0] <= most[1], most


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_known_before_the_call(name: str):
    _, compiled, x = made(name)
    with torch.no_grad(), recording() as records:
        compiled(x)
        measured = peak_bytes(lambda: compiled(x))[0]
    (record,) = records
    # What the library needs for attention; its kernels for GPUs give small results that are counted and not made.
    inside, unmade = (1 << 15, 1 << 10) if name == "attention" else (0, 0)
    assert -unmade <= measured - record.run.peak_bytes() <= inside


def saved(f: Any, *shapes: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """The backward graph of a function and its gradients, which are eager's; the placeholders that it may write to."""
    torch.manual_seed(0)
    given = [torch.randn(s, requires_grad=True) for s in shapes]
    compiled = torch.compile(f, backend="tessera", options=OPTIONS)
    with recording() as records:
        ours = torch.autograd.grad(f_sum(compiled(*given)), given)
    for mine, theirs in zip(ours, torch.autograd.grad(f_sum(f(*given)), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    plan = records[-1].run.plan
    return plan, sorted(v.name for v in plan.donated)


def f_sum(out: Any) -> Any:
    several = out if isinstance(out, tuple) else (out,)
    return sum((x * torch.arange(x.numel()).reshape(x.shape)).sum() for x in several)


def test_a_gradient_lies_where_a_saved_tensor_was():
    plan, donated = saved(lambda x, w: torch.sigmoid(x @ w) * 2, (32, 32), (32, 32))
    assert len(donated) == 1
    homes = [plan.memory(v) for s in plan.steps for v in s.writes]
    assert any(plan.place[h] == INPUT and h in plan.donated for h in homes)


def test_what_is_a_result_as_well_is_not_written_to():
    def f(x: Any, w: Any) -> Any:
        y = torch.sigmoid(x @ w)
        return y, y * y

    _, donated = saved(f, (32, 32), (32, 32))
    assert not donated


def test_tensors_that_share_memory_are_not_alone():
    """Two saved tensors may be views of one; then neither is written to while the other one is read."""

    def f(x: Any) -> Any:
        y, z = torch.sigmoid(x), torch.cos(x)
        return y, y.t(), z, x.t()

    graph = make_fx(f, tracing_mode="fake")(torch.randn(8, 8))
    imported = import_graph(graph, Options())
    donations = Donations()
    donations.note(graph, imported.outputs, executable_of(imported, Options()))
    assert donations.alone == {"cos"}


def test_torch_may_be_told_to_keep_saved_tensors():
    x = torch.randn(32, 32, requires_grad=True)
    run = torch.compile(lambda x: torch.sigmoid(x @ x).sum(), backend="tessera", options=OPTIONS)
    with torch._functorch.config.patch(donated_buffer=False):
        out = run(x)
        first, second = (torch.autograd.grad(out, x, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def of_forward(run: Any, *given: Any) -> list[Any]:
    """Types of the tensors that the forward graph of a compiled function saves, beside what it was given."""
    with recording() as records:
        run(*given)
    (plan,) = (r.run.plan for r in records if r.purpose == "forward")
    saved = [plan.root(v) for v in plan.results if plan.root(v) not in plan.arguments]
    return [(v.type.elem.short, v.type.shape) for v in dict.fromkeys(saved)]


@pytest.mark.parametrize("off", ["", "graph-drop-copies"])
def test_a_copy_is_not_saved_beside_what_it_is_of(monkeypatch: pytest.MonkeyPatch, off: str):
    """A dropout that drops nothing copies; the weights are saved for both products' gradients and for softmax's."""
    monkeypatch.setenv("TESSERA_DISABLE", off)

    def f(x: Any, y: Any) -> Any:
        weights = torch.softmax(x @ y, -1)
        return torch.nn.functional.dropout(weights, 0.0) @ y

    x, y = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    compiled = torch.compile(f, backend="tessera", options=OPTIONS)
    ours = torch.autograd.grad(f_sum(compiled(x, y)), [x, y])
    for mine, theirs in zip(ours, torch.autograd.grad(f_sum(f(x, y)), [x, y]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-2)
    torch._dynamo.reset()
    large = [s for _, s in of_forward(compiled, x, y) if s == (64, 64)]
    assert len(large) == (3 if off else 2), large  # the result, and the weights


def test_a_copy_that_leaves_the_graph_has_memory_of_its_own():
    def f(x: Any) -> Any:
        y = torch.sin(x)
        return x.clone(), y, y.clone(), y.clone()[:2]

    x = torch.randn(8, requires_grad=True)
    out = torch.compile(f, backend="tessera", options=OPTIONS)(x)
    places = {t.untyped_storage().data_ptr() for t in (x, *out)}
    assert len(places) == 5
    for mine, theirs in zip(out, f(x), strict=True):
        torch.testing.assert_close(mine, theirs)


APART = {
    "split": (lambda y: y.split(2)[0], (4, 5)),
    "diagonal": (lambda y: y.diagonal(), (4, 4)),
    "unfold": (lambda y: y.unfold(0, 2, 1), (4, 4)),
    "chunk": (lambda y: y.chunk(2, 1)[1].T, (4, 4)),
}


@pytest.mark.parametrize("name", APART)
def test_views_of_a_copy_have_the_memory_of_the_copy(name: str):
    view, shape = APART[name]

    def f(x: Any) -> Any:
        y = torch.sin(x)
        return y, view(y.clone())

    out = torch.compile(f, backend="tessera", options=OPTIONS)(torch.randn(shape).requires_grad_())
    assert len({t.untyped_storage().data_ptr() for t in out}) == 2


BEFORE = {
    "split": (lambda x: x.split(2)[0], (4, 5)),
    "diagonal": (lambda x: x.diagonal(), (4, 4)),
    "squeeze": (lambda x: x.squeeze(), (4, 1, 4)),
    "as bits": (lambda x: x.view(torch.int32), (4, 4)),
    "itself": (lambda x: x, (4, 4)),
}


@pytest.mark.parametrize("name", BEFORE)
def test_gradients_need_what_an_argument_held_before_it_was_written_to(name: str):
    """The copy is saved: the argument has other numbers when the backward graph runs."""
    view, shape = BEFORE[name]

    def f(x: Any, w: Any) -> Any:
        y = view(x).clone() * w
        x.mul_(2)
        return y

    w, given = torch.randn(()).requires_grad_(), torch.randn(shape)
    compiled = torch.compile(f, backend="tessera", options=OPTIONS)
    mine, theirs = (torch.autograd.grad(f_sum(g(given.clone(), w)), w)[0] for g in (compiled, f))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


POOLS = {
    "apart": ((2, 3, 12, 10), {"kernel_size": 2}),
    "overlapping": ((2, 3, 13, 11), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "spread": ((1, 2, 15, 14), {"kernel_size": (3, 2), "stride": (1, 2), "dilation": (2, 3)}),
    "past the end": ((3, 11, 13), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "past the padding": ((1, 2, 9, 9), {"kernel_size": 3, "padding": 1, "dilation": 2}),
    "wide": ((1, 2, 20, 20), {"kernel_size": (16, 8), "stride": 1}),
}


@pytest.mark.parametrize("off", ["", "graph-narrow-places"])
@pytest.mark.parametrize("name", POOLS)
def test_gradients_of_max_pooling(monkeypatch: pytest.MonkeyPatch, name: str, off: str):
    """Saved are places in windows, in 8 bits, and nothing of what is pooled; of windows of 128 elements as they are."""
    monkeypatch.setenv("TESSERA_DISABLE", off)
    shape, window = POOLS[name]

    def f(x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x * 2, **window)

    for kind in ("apart", "ties", "infinite"):
        x = torch.randn(shape)
        x = {"apart": x, "ties": x.round(), "infinite": torch.full(shape, -torch.inf)}[kind]
        x.requires_grad_()
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="tessera", options=OPTIONS)
        mine, theirs = (torch.autograd.grad(f_sum(g(x)), x)[0] for g in (compiled, f))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    torch._dynamo.reset()
    kinds = [kind for kind, _ in of_forward(compiled, x)]
    assert ("i8" in kinds, "i64" in kinds) == (
        (False, True) if off or name == "wide" else (True, False)
    )
    assert len(kinds) == (3 if off or name == "wide" else 2), kinds


# --- pages ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("off", ["", "graph-share-pages"])
def test_small_tensors_that_are_saved_share_a_page(monkeypatch: pytest.MonkeyPatch, off: str):
    """Statistics of two norms, of 12 and 24 bytes; what the program gets keeps memory of its own, as small as it is."""
    monkeypatch.setenv("TESSERA_DISABLE", off)
    monkeypatch.setattr(executable, "settle", as_on_a_gpu(executable.settle))
    torch.manual_seed(0)
    norms = nn.LayerNorm(64), nn.LayerNorm(32)

    def f(x: Any) -> Any:
        y = norms[0](x).view(-1, 32)
        return norms[1](y).sin().view(x.shape) * x, y.sum(1), y.sum(0)

    x = torch.randn(3, 64, requires_grad=True)
    leaves = [x, *norms[0].parameters(), *norms[1].parameters()]
    compiled = torch.compile(f, backend="tessera", options=OPTIONS)
    with recording() as records:
        out = compiled(x)
        ours = torch.autograd.grad(f_sum(out), leaves)
    for mine, theirs in zip(ours, torch.autograd.grad(f_sum(f(x)), leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    assert [t.untyped_storage().nbytes() for t in out] == [768, 24, 128]
    (plan,) = (r.run.plan for r in records if r.purpose == "forward")
    paged = [v for page in plan.pages for v in page]
    assert len(paged) == (0 if off else 4)
    assert {v.type.shape for v in paged} <= {(3,), (3, 2)}
    (backward,) = (r.run.plan for r in records if r.purpose == "backward")
    assert len(backward.donated) >= 4


def as_on_a_gpu(settle: Any) -> Any:
    """The plan with the pages of a GPU's allocator."""
    return lambda plan, forbidden, keep_from=0, page=0: settle(plan, forbidden)


def test_a_view_of_an_arena_that_ends_between_two_elements():
    arena = torch.arange(38, dtype=torch.uint8)
    for kind, offset in ((torch.float32, 16), (torch.int64, 16), (torch.uint8, 32)):
        found = TorchHost({}, {}).view(arena, offset, (2,), (1,), kind)
        want = arena[offset : offset + 2 * kind.itemsize]
        assert torch.equal(found.view(torch.uint8), want)
        assert found.data_ptr() == arena.data_ptr() + offset


def test_the_host_is_measured_on_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch):
    for name in ("empty_cache", "synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 8)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 8)
    most, how = peak_bytes(lambda: torch.ones(1000, device="cpu"))
    assert most == 4000 and "profiler" in how
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 20)
    assert peak_bytes(lambda: None) == (12, "CUDA's allocator, second call")
