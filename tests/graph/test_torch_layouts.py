"""Convolutional networks under torch.compile: numbers and strides are eager's, whatever layout convolutions have."""

# pyright: basic, reportMissingImports=false
# torch gives most of its values no type.
from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tessera.torch  # noqa: E402, F401  # registers the backend
from tessera.graph import explain  # noqa: E402
from tessera.graph.passes.convolutions import convolution_of, is_channels_last  # noqa: E402
from tessera.graph.planning.plan import Extern  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402
from tests.graph import torch_kit  # noqa: E402

on_a_cpu = pytest.mark.skipif(
    "config.getoption('--device') == 'cuda'", reason="convolutions of fp32 stay row-major there"
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Sizes that other tests have compiled for make none dynamic here."""
    torch._dynamo.reset()


class Residual(nn.Module):
    """Convolutions with batch norms around a sum, as those of a ResNet."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.second = nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Any) -> Any:
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + x).relu()


class Mixed(nn.Module):
    """Concatenation, a part of the channels, upsampling, a transposed convolution; gives images, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.after = nn.Conv2d(24, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x: Any) -> tuple[Any, ...]:
        y = self.stem(x).relu()
        z = self.depthwise(y)
        together = torch.cat([y, z[:, 8:].sigmoid()], 1)
        out = self.after(together)
        coarse = nn.functional.interpolate(nn.functional.max_pool2d(out, 2), scale_factor=2.0)
        return self.up(out + coarse), y, z.flatten(1).sum(1)


def plain(channels: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(channels, channels),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def tensors_of(found: Any) -> list[Any]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def step(model: Any, x: Any) -> list[Any]:
    """Results, and gradients in the order of parameters, the input's last."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    found = tensors_of(model(x))
    loss = sum((t.float().square().mean() for t in found), torch.zeros(()))
    assert isinstance(loss, torch.Tensor)
    inner = getattr(model, "_orig_mod", model)
    return [*found, *torch.autograd.grad(loss, [*inner.parameters(), x])]


def compare(ours: list[Any], eager: list[Any], tolerance: float) -> None:
    for a, b in zip(ours, eager, strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        error = (a.detach().double() - b.double()).norm()
        assert error <= tolerance * max(float(b.detach().double().norm()), 1e-2)


@pytest.mark.parametrize(
    ("made", "form"),
    [
        (plain, "plain"), (Mixed, "plain"), (Mixed, "channels last"), (plain, "one image"), (plain, "dynamic"),
    ],
)  # fmt: skip
def test_training(made: Any, form: str) -> None:
    torch.manual_seed(0)
    model = made().double().float()
    compiled = torch.compile(
        copy.deepcopy(model), backend="tessera", dynamic=True if form == "dynamic" else None
    )
    for count in (4, 7) if form == "dynamic" else (1,) if form == "one image" else (4,):
        x = torch.randn(count, 3, 32, 32)
        if form == "channels last":
            x = x.contiguous(memory_format=torch.channels_last)
        with recording() as records:
            compare(step(compiled, x), step(model, x), 2e-3)
        if form == "plain":
            chosen = [r.imported.module.attrs["convolutions"] for r in records]
            wanted = "row-major: of fp32" if x.is_cuda else "channels last"
            assert len(chosen) == 2 and all(c.startswith(wanted) for c in chosen)
    for a, b in zip(compiled._orig_mod.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_inference_in_bf16() -> None:
    torch.manual_seed(0)
    model = plain().bfloat16().eval()
    compiled = torch.compile(model, backend="tessera")
    x = torch.randn(4, 3, 32, 32).bfloat16()
    with torch.no_grad(), recording() as records:
        ours, eager = compiled(x), model(x)
    compare([ours], [eager], 2e-2)
    (record,) = records
    externs = [s.op for s in record.run.plan.steps if isinstance(s, Extern)]
    found = [c for op in externs if (c := convolution_of(op)) is not None]
    assert len(found) == 4
    assert all(is_channels_last(v.type) for c in found for v in (*c.tensors, *c.made))


@on_a_cpu
def test_saved_tensors_are_not_copied_for_the_backward_graph() -> None:
    """What a convolution's gradient reads of the forward graph lies there as it needs it."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(16, 16, 1) for _ in range(4)))
    x = torch.randn(4, 16, 16, 16, requires_grad=True)
    with recording() as records:
        torch.compile(model, backend="tessera")(x).square().sum().backward()
    backward = next(r for r in records if r.purpose == "backward")
    inputs = backward.imported.module.functions[0].regions[0].args
    images = [v for v in inputs if v.type.rank == 4 and v.type.shape[2] == 16]
    assert sum(is_channels_last(v.type) for v in images) >= 3


@on_a_cpu
def test_explain_says_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = plain(), torch.randn(4, 3, 32, 32)
    report = explain(model, x, measure=False)
    assert "convolutions: channels last: 4 convolutions would reorder" in str(report)
    assert '"convolutions": "channels last' in report.json()
    monkeypatch.setenv("TESSERA_DISABLE", "graph-channels-last")
    off = str(explain(model, x, measure=False))
    assert "convolutions: row-major: graph-channels-last is off" in off


def test_adaptive_pooling_keeps_the_order_of_elements() -> None:
    x = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last)
    pool = nn.AdaptiveAvgPool2d((4, 3))
    found, wanted = torch.compile(pool, backend="tessera")(x), pool(x)
    torch.testing.assert_close(found, wanted, check_stride=True)


@on_a_cpu
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape", "order"),
    [
        (nn.BatchNorm1d, (8, 12, 16), (0, 2, 1)),
        (nn.BatchNorm1d, (16, 8), (1, 0)),
        (nn.BatchNorm2d, (8, 5, 6, 16), (0, 3, 1, 2)),
        (nn.BatchNorm2d, (5, 6, 8, 16), (2, 3, 0, 1)),
    ],
)
def test_batch_norms_of_transposed_inputs_have_the_strides_of_eager(
    kind: Any, shape: Any, order: Any, training: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).permute(order).detach().requires_grad_()
    norm = kind(x.shape[1]).train(training)
    other = copy.deepcopy(norm)
    compiled = torch.compile(other, backend="tessera", dynamic=False)
    want, found = norm(x), compiled(x)
    torch.testing.assert_close(found, want)
    assert found.stride() == want.stride()
    expected, given = (torch.autograd.grad(y.square().sum(), x)[0] for y in (want, found))
    torch.testing.assert_close(given, expected)
    assert given.stride() == expected.stride()


ORDERS = {
    "logsigmoid": functional.logsigmoid, "hardswish": functional.hardswish, "hardsigmoid": functional.hardsigmoid,
    "elu": functional.elu, "softplus": functional.softplus, "hardtanh": functional.hardtanh,
    "log_softmax": lambda x: functional.log_softmax(x.contiguous(), 1).T,
    "layer_norm": lambda x: functional.layer_norm(x, (8,)).T,
    "mse": lambda x: functional.mse_loss(x, x.detach().contiguous(), reduction="none"),
    "huber": lambda x: functional.huber_loss(x, 2 * x.detach().contiguous(), reduction="none"),
    "smooth_l1": lambda x: functional.smooth_l1_loss(x, 2 * x.detach().contiguous(), reduction="none"),
    "bce": lambda x: functional.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), reduction="none"),
}  # fmt: skip


IMAGES = {
    "glu": lambda x: functional.glu(x, 1).contiguous(),
    "glu of rows": lambda x: functional.glu(x, 3).contiguous(),
    "max_unpool2d": lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), [2, 2]),
}  # fmt: skip


@on_a_cpu
@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_inputs_give_the_order_of_eager(name: str) -> None:
    """Torch's decompositions keep channels last in a gradient that is row-major in eager, or lose them in a result."""
    x = torch.randn(2, 4, 6, 8).to(memory_format=torch.channels_last).requires_grad_()
    torch_kit.compare(IMAGES[name], x, backward=True, dynamic=False)


EMPTY = {
    "cumsum": lambda x: x.cumsum(0), "sum": lambda x: x.relu().sum(0), "transposed": lambda x: x.relu().T,
    "zeros": lambda x: x.new_zeros(2, 0, 3), "copy": lambda x: x.clone(), "product": lambda x: x.T @ x,
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("form", ["plain", "transposed", "part"])
def test_results_of_no_elements_have_the_strides_of_eager(name: str, form: str) -> None:
    x = {
        "plain": torch.zeros(3, 0),
        "transposed": torch.zeros(0, 3).T,
        "part": torch.zeros(3, 5)[:, :0],
    }[form]
    found, wanted = torch.compile(EMPTY[name], backend="tessera")(x), EMPTY[name](x)
    assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())


@on_a_cpu
@pytest.mark.parametrize("name", ORDERS)
def test_results_and_gradients_of_gapped_inputs_lie_as_in_eager(name: str) -> None:
    """Rows with gaps, transposed: what torch's decompositions make of them would lie in another order."""
    x = torch.randn(95).as_strided((8, 5), (11, 2)).T.requires_grad_()
    torch_kit.compare(ORDERS[name], x.detach(), dynamic=False)
    torch_kit.compare(lambda x: ORDERS[name](x).contiguous(), x, backward=True, dynamic=False)


@pytest.mark.parametrize("form", ["plain", "behind others", "gaps"])
def test_views_of_changed_inputs_are_returned_where_they_lie(form: str) -> None:
    """Sizes are symbols, so that torch makes the view of the input by the layout of what the graph returns."""

    def last(x: Any) -> Any:
        y = x.select(1, 0).narrow(0, -1, 1)
        y.add_(1)
        return y

    base = torch.arange(24.0).reshape(4, 6)
    part = {"plain": base, "behind others": base[1:], "gaps": base[:, 1::2]}[form]
    span = part.untyped_storage().nbytes() // 4
    given = [
        base.clone()
        .as_strided((span,), (1,))
        .as_strided(part.shape, part.stride(), part.storage_offset())
        for _ in "ab"
    ]
    wanted, found = last(given[0]), torch.compile(last, backend="tessera", dynamic=True)(given[1])
    torch.testing.assert_close(found, wanted, check_stride=True)
    torch.testing.assert_close(given[1], given[0])
    assert found.storage_offset() == wanted.storage_offset()
    assert found.untyped_storage().data_ptr() == given[1].untyped_storage().data_ptr()
