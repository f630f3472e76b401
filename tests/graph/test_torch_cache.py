"""Graphs that torch keeps on disk: another process, or this one after a reset, reads them in place of tracing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch._functorch import config

import tessera.torch  # noqa: F401  registers the backend
from tessera.graph.torch import backend, cache
from tessera.graph.torch.records import recording

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < cache.SINCE,
    reason="this torch has other classes",
)


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with config.patch(enable_autograd_cache=True):
        yield
    torch._dynamo.reset()


def block(x: Any, w: Any) -> Any:
    return torch.softmax(x @ w, -1).sum(0), x.t()


def anew(function: Callable[..., Any], *args: Any, **more: Any) -> tuple[Any, str]:
    """What the function gives, compiled as by another process; and what torch's cache did."""
    torch._dynamo.reset()
    counters.clear()
    found = torch.compile(function, backend="tessera", **more)(*args)
    count = counters["aot_autograd"]
    names = ("hit", "saved", "miss", "bypass")
    return found, next((n for n in names if count[f"autograd_cache_{n}"]), "none")


def arguments(kind: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(6, 8, dtype=kind), torch.randn(8, 4, dtype=kind)


def test_a_graph_is_read_in_place_of_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()
    first, did = anew(block, *args)
    assert did == "saved"

    def refuse(*given: Any) -> Any:
        raise AssertionError("the graph was imported again")

    monkeypatch.setattr(backend, "import_graph", refuse)
    found, did = anew(block, *args)
    assert did == "hit"
    for x, y, z in zip(found, first, block(*args), strict=True):
        assert torch.equal(x, y)
        torch.testing.assert_close(x, z)
        assert x.stride() == z.stride()


def test_externs_are_found_by_name() -> None:
    def function(x: Any) -> Any:
        return torch.conv1d(x[None], x[:, None], groups=5).exp(), torch.fft.rfft(x).abs()

    x = torch.randn(5, 5)
    assert anew(function, x)[1] == "saved"
    found, did = anew(function, x)
    assert did == "hit"
    torch.testing.assert_close(found, function(x))


def test_written_arguments_and_outputs_that_alias() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(y)
        return x, x[1:] * 2, None

    def both() -> tuple[Any, str, Any]:
        x, y = torch.arange(6.0), torch.ones(6)
        found, did = anew(function, x, y)
        assert found[0] is x
        return found, did, x

    first, did, _ = both()
    assert did == "saved"
    again, did, x = both()
    assert did == "hit"
    assert torch.equal(x, torch.arange(6.0) + 1)
    assert torch.equal(again[1], first[1])


@pytest.mark.parametrize("more", [{"numerics": "eager"}, {"fuse": False}])
def test_other_options_are_another_entry(more: dict[str, Any]) -> None:
    args = arguments(torch.bfloat16)
    assert anew(block, *args)[1] == "saved"
    assert anew(block, *args, options=more)[1] == "saved"
    assert anew(block, *args, options=more)[1] == "hit"


def test_knobs_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()
    assert anew(block, *args)[1] == "saved"
    monkeypatch.setattr(cache, "toolchain_fingerprint", lambda: "another tessera")
    assert anew(block, *args)[1] == "saved"


def test_an_entry_of_another_tessera_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if torch did not hash our part of the key."""
    args = arguments()
    monkeypatch.setattr(cache, "MARK", "meta")  # torch leaves that out
    assert anew(block, *args)[1] == "saved"
    monkeypatch.setattr(cache, "toolchain_fingerprint", lambda: "another tessera")
    found, did = anew(block, *args)
    assert did == "bypass"
    torch.testing.assert_close(found, block(*args))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device="cpu").to(x),  # a constant
        lambda x: torch.linalg.inv(
            x.expand(4, 4) + torch.eye(4).to(x)
        ),  # with an effect: it may fail
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
    ],
)
def test_what_the_key_does_not_tell_is_compiled_anew(function: Callable[..., Any]) -> None:
    x = torch.ones(4)
    for _ in range(2):
        found, did = anew(function, x)
        assert did in ("miss", "bypass")
        torch.testing.assert_close(found, function(x))


def test_sizes_that_are_not_known_are_compiled_anew() -> None:
    for n in (5, 7):
        x = torch.ones(n, 3)
        found, did = anew(torch.softmax, x, 0, dynamic=True)
        assert did != "hit"
        torch.testing.assert_close(found, torch.softmax(x, 0))


def test_gradients_are_kept_where_the_program_says_so() -> None:
    def trained() -> tuple[Any, str]:
        x, w = (t.requires_grad_() for t in arguments())
        (found, _), did = anew(block, x, w)
        found.square().sum().backward()
        if did == "miss" and counters["aot_autograd"]["autograd_cache_saved"]:
            did = "saved"
        return (x.grad, w.grad), did

    expected, did = trained()
    assert did == "none"
    with config.patch(bundled_autograd_cache=True):
        assert trained()[1] == "saved"
        found, did = trained()
    assert did == "hit"
    torch.testing.assert_close(found, expected)


def test_whoever_listens_hears_of_the_graph() -> None:
    args = arguments()
    assert anew(block, *args)[1] == "saved"
    with recording() as records:
        anew(block, *args)
    assert [r.purpose for r in records] == ["inference"]
