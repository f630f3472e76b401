"""The losses of `torch.nn.functional`, and functions of `torch.func`, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402

from tests.graph.torch_kit import compare, externs  # noqa: E402

R = torch.randn


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not compile is an error."""
    monkeypatch.setenv("TESSERA_STRICT", "1")


ROWS, CLASSES = 6, 5


def leaf() -> Any:
    return R(ROWS, CLASSES).requires_grad_()


def chance() -> Any:
    return (torch.rand(ROWS, CLASSES) * 0.8 + 0.1).requires_grad_()


def labels() -> Any:
    return torch.tensor([0, 3, -100, 1, 4, 2])


def weights(x: Any) -> Any:
    return torch.linspace(0.5, 2, CLASSES, dtype=x.dtype, device=x.device)


def signs(x: Any, n: int) -> Any:
    return torch.where(torch.arange(n, device=x.device) % 2 == 0, 1, -1).to(x.dtype)


# Losses, and what makes each argument.
MSE: Any = F.mse_loss  # the stubs of torch know no weight
LOSSES: dict[str, tuple[Any, ...]] = {
    "mse": (lambda a, b, w, **k: MSE(a, b, weight=w.detach(), **k), leaf, leaf, chance),
    "l1": (F.l1_loss, leaf, leaf),
    "smooth l1": (partial(F.smooth_l1_loss, beta=0.3), leaf, leaf),
    "huber": (partial(F.huber_loss, delta=0.4), leaf, leaf),
    "cross entropy": (
        lambda a, t, **k: F.cross_entropy(a, t, weight=weights(a), label_smoothing=0.1, **k), leaf, labels,
    ),
    "cross entropy of chances": (lambda a, t, **k: F.cross_entropy(a, t.softmax(-1), **k), leaf, leaf),
    "cross entropy of pictures": (
        lambda a, t, **k: F.cross_entropy(a.reshape(2, CLASSES, 3), t % CLASSES, ignore_index=2, **k),
        leaf, lambda: torch.arange(6).reshape(2, 3),
    ),
    "nll": (lambda a, t, **k: F.nll_loss(a.log_softmax(1), t, weight=weights(a), **k), leaf, labels),
    "bce": (lambda a, b, **k: F.binary_cross_entropy(a, b.detach(), weight=weights(a), **k), chance, chance),
    "bce of logits": (
        lambda a, b, **k: F.binary_cross_entropy_with_logits(a, b, pos_weight=weights(a), **k), leaf, chance,
    ),
    "kl": (lambda a, b, **k: F.kl_div(a.log_softmax(-1), b.softmax(-1), **k), leaf, leaf),
    "kl of logarithms": (
        lambda a, b, **k: F.kl_div(a.log_softmax(-1), b.log_softmax(0), log_target=True, **k), leaf, leaf,
    ),
    "poisson": (lambda a, b, **k: F.poisson_nll_loss(a, b.detach() * 5, full=True, **k), chance, chance),
    "gauss": (partial(F.gaussian_nll_loss, full=True), leaf, leaf, chance),
    "hinge": (lambda a, **k: F.hinge_embedding_loss(a, signs(a, CLASSES).expand_as(a), margin=0.7, **k), leaf),
    "ranking": (lambda a, b, **k: F.margin_ranking_loss(a, b, signs(a, CLASSES).expand_as(a), 0.3, **k), leaf, leaf),
    "soft margin": (lambda a, **k: F.soft_margin_loss(a, signs(a, CLASSES).expand_as(a), **k), leaf),
    "cosine": (lambda a, b, **k: F.cosine_embedding_loss(a, b, signs(a, ROWS), margin=0.1, **k), leaf, leaf),
    "triplet": (partial(F.triplet_margin_loss, swap=True), leaf, leaf, leaf),
    "margin": (lambda a, **k: F.multi_margin_loss(a, torch.arange(ROWS, device=a.device) % CLASSES, p=2, **k), leaf),
    "margins of several": (  # classes after the first -1 do not count
        F.multilabel_margin_loss, leaf,
        lambda: torch.tensor([[1, 3, -1, 4, 0], [-1, 1, 2, 3, 4], [4, 3, 2, 1, 0]]).repeat(2, 1),
    ),
    "soft margins": (
        lambda a, b, **k: F.multilabel_soft_margin_loss(a, b.round(), weight=weights(a), **k), leaf, chance,
    ),
}  # fmt: skip


IN_BF16 = ("mse", "cross entropy", "bce of logits", "kl", "gauss", "triplet")


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, torch.float32) for name in LOSSES), *((name, torch.bfloat16) for name in IN_BF16)],
)
def test_losses(name: str, kind: Any):
    """Each reduction, forward and backward, without an extern."""
    loss, *arguments = LOSSES[name]
    torch.manual_seed(1)
    given = [make() for make in arguments]
    for k, x in enumerate(given):
        if x.is_floating_point():
            given[k] = x.detach().to(kind).requires_grad_(x.requires_grad)

    def each(*args: Any) -> Any:
        return [loss(*args, reduction=r) for r in ("none", "mean", "sum")]

    assert externs(compare(each, *given, backward=True)) == set()


# --- torch.func -----------------------------------------------------------------------------------------------------
W, V = torch.linspace(-1, 1, 16).reshape(4, 4).cos(), torch.ones(4, 3)
NET = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
)
PARAMETERS = {name: p.detach() for name, p in NET.named_parameters()}


def net(x: Any) -> Any:
    return torch.tanh(x @ W) @ V


def total(x: Any) -> Any:
    return F.gelu(x @ W).softmax(-1).log().sum() + F.layer_norm(x, (4,)).pow(2).sum()


def of_one(parameters: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(functional_call(NET, parameters, (x[None],)), y[None])


def penalty(x: Any, parameters: Any = PARAMETERS) -> Any:
    """How far the gradients are from being of length 1."""
    slopes = grad(lambda z: functional_call(NET, parameters, (z,)).sum())(x)
    return (slopes.norm(dim=1) - 1).square().mean()


TRANSFORMED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "jacobian, reverse": (jacrev(net), (5, 4)),
    "jacobian, forward": (jacfwd(net), (5, 4)),
    "hessian": (hessian(total), (3, 4)),
    "hessian, forward": (jacfwd(jacfwd(total)), (3, 4)),  # adds tensors of zeros that have no memory
    "hessian, reverse": (jacrev(jacrev(total)), (3, 4)),
    "jvp": (lambda x: jvp(total, (x,), (x.cos(),)), (3, 4)),
    "jvp of grad": (lambda x: jvp(grad(total), (x,), (x.cos(),)), (3, 4)),
    "grad of each": (
        lambda x: vmap(grad(of_one), in_dims=(None, 0, 0))(PARAMETERS, x, torch.arange(6, device=x.device) % 3), (6, 4),
    ),
    "penalty": (grad(penalty), (5, 4)),
    "penalty of parameters": (lambda x: grad(partial(penalty, x))(PARAMETERS), (5, 4)),
    "elements": (  # copies the 2
        lambda x: vmap(lambda r, i: r[i] * 2)(x, torch.arange(6, device=x.device) % 4), (6, 4),
    ),
    "softsign": (hessian(lambda x: F.softsign(x).sum()), (3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("log", [False, True])
def test_scores_of_millions(log: bool, dim: int):
    """The largest score, which is subtracted, is rounded; so are the scores from which it is subtracted."""

    def weights(x: Any, scale: Any) -> Any:
        return (F.log_softmax if log else F.softmax)(x * scale, dim)

    for shape in ((10, 10), (300, 70), (5, 4000)):
        x = torch.linspace(-1, 1, shape[0] * shape[1]).sin().reshape(shape).mul(3)
        for scale in (1e6, 1e6 + torch.arange(shape[1]).float()):
            torch._dynamo.reset()
            found = torch.compile(weights, backend="tessera")(x, scale)
            torch.testing.assert_close(found, weights(x, scale), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_functions(name: str):
    function, shape = TRANSFORMED[name]
    torch.manual_seed(2)
    assert externs(compare(function, R(*shape), scale=3)) <= {
        "aten.mm.default",
        "aten.addmm.default",
        "aten.bmm.default",
    }
