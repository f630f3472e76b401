"""Programs that are out of the ordinary, wrong options, faults of ours: each is right, or says what is wrong."""

# pyright: basic, reportMissingImports=false
# torch gives most of its values no type.
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import tessera.torch  # noqa: E402, F401  # registers the backend
from tessera.config import knobs  # noqa: E402
from tessera.errors import InvalidOption, MissingMemory  # noqa: E402
from tessera.graph.calls import build_kernels  # noqa: E402
from tessera.graph.planning.planner import KernelWarning  # noqa: E402
from tessera.graph.torch import backend  # noqa: E402
from tessera.graph.torch.host import TorchHost  # noqa: E402
from tessera.graph.torch.options import options_of  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)


# --- options ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"fuse": "no"}, "fuse is 'no'; it may be True or False"),
        ({"cuda_graphs": 1}, "cuda_graphs is 1; it may be False or True"),
        ({"random": ["eager"]}, "philox or eager"),
        ({"numerics": None}, "fast or eager"),
    ],
)
def test_values_of_options_are_checked(given: dict[str, Any], why: str):
    with pytest.raises(InvalidOption, match=why):
        options_of(None, given)


@pytest.mark.parametrize("mode", [3, ["default"], "Default"])
def test_modes_are_names(mode: Any):
    with pytest.raises(InvalidOption, match="the modes are default"):
        options_of(mode, None)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        run = torch.compile(lambda x: x + 1, backend="tessera", options={"dump": wrong})
        with pytest.raises(Exception, match="no folder and cannot be made one"):
            run(torch.ones(2))


def test_a_graph_that_cannot_be_written_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(backend.Executable, "dump", full)
    run = torch.compile(lambda x: x + 1, backend="tessera", options={"dump": tmp_path})
    with pytest.warns(backend.GraphWarning, match="was not written to .*: no space left"):
        assert run(torch.ones(2)).tolist() == [2, 2]


# --- a fault of ours ----------------------------------------------------------------------------------------------
def test_a_kernel_that_does_not_compile_can_be_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of the compiler")

    x = torch.randn(4, 6)
    monkeypatch.setattr(build_kernels, "compile_kernel", broken)
    with pytest.raises(Exception, match="a fault of the compiler"):
        torch.compile(lambda x: x.softmax(1), backend="tessera")(x)
    monkeypatch.setattr(knobs.compilation, "strict", False)
    folders = SimpleNamespace(mkdtemp=lambda prefix: str(tmp_path))
    monkeypatch.setattr(build_kernels, "tempfile", folders)
    torch._dynamo.reset()
    with pytest.warns(KernelWarning, match="a fault of the compiler.*reproduces it") as caught:
        found = torch.compile(lambda x: x.softmax(1), backend="tessera")(x)
    torch.testing.assert_close(found, x.softmax(1))
    assert len(caught) == 1 and str(tmp_path) in str(caught[0].message)
    (text,) = tmp_path.glob("*.tir")
    run = [sys.executable, tmp_path / "run.py"]
    assert subprocess.run(run).returncode == 0  # the compiler itself is well
    text.write_text(text.read_text().replace("exp", "expo"))
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1 and "expo" in done.stderr


# --- tensors ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: x.sum(0),
        lambda x: x @ x.t(),
        lambda x: torch.linalg.svd(x)[1],
        lambda x: x.t(),
    ],
)
def test_memory_that_has_the_other_sign(function: Callable[..., Any], dynamic: bool):
    """The imaginary part of a conjugate is memory whose elements count with the other sign."""
    run = torch.compile(function, backend="tessera", dynamic=dynamic)
    z = torch.randn(3, 3, dtype=torch.complex64)
    for x in (z.imag.clone(), z.conj().imag, z.imag.clone()):
        torch.testing.assert_close(run(x), function(x))


def test_copies_of_memory_that_has_the_other_sign_have_it_too():
    """Kernels of GPUs get copies of what does not begin at a multiple of 16 bytes."""
    z = torch.randn(3, 3, dtype=torch.complex64)
    x, host = z.conj().imag, TorchHost({}, {}, str(z.device))
    copy = host.aligned(x)
    assert copy is not x and not copy.is_neg()
    torch.testing.assert_close(copy, z.imag)
    host.write_back(x, copy * 2)
    torch.testing.assert_close(x, 2 * -copy)


def test_memory_that_has_the_other_sign_is_written():
    def write(x: Any) -> Any:
        x.add_(1)
        return x * 3

    z = torch.randn(3, dtype=torch.complex64)
    ours, theirs = z.clone(), z.clone()
    found = torch.compile(write, backend="tessera")(ours.conj().imag)
    torch.testing.assert_close(found, write(theirs.conj().imag))
    torch.testing.assert_close(ours, theirs)


def jagged() -> Any:
    rows = [torch.full((n, 3), float(n)) for n in (2, 4, 1)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


@pytest.mark.filterwarnings("ignore:.*stable_hash")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin() * x,
        lambda x: F.linear(x, torch.ones(5, 3)).relu(),
        lambda x: x.softmax(-1),
        lambda x: x.to_padded_tensor(0.0),
    ],
)
def test_jagged_tensors(function: Callable[..., Any]):
    """Their length of rows is a size that no arithmetic is done with."""
    ours, theirs = jagged(), jagged()
    found = []
    for x, run in ((ours, torch.compile(function, backend="tessera")), (theirs, function)):
        y = run(x)
        y = y.values() if y.is_nested else y
        y.square().sum().backward()
        found.append((y.detach(), x.grad.values()))
    torch.testing.assert_close(*found)


def test_the_shape_of_a_jagged_tensor():
    x = jagged()
    assert torch.compile(lambda x: (x * 2).shape, backend="tessera")(x) == x.shape


# --- tensors without memory ---------------------------------------------------------------------------------------
def test_fake_tensors_give_fake_tensors():
    """Kernels would read from no memory at all, also those that were made for sizes of other calls."""
    compiled = torch.compile(lambda x: (x @ x.mT).sin(), backend="tessera")
    compiled(torch.ones(3, 4))
    for n in (3, 5):
        found = compiled(FakeTensorMode().from_tensor(torch.ones(n, 4)))
        assert isinstance(found, FakeTensor) and found.shape == (n, n)
    torch.testing.assert_close(compiled(torch.ones(6, 4)), torch.full((6, 6), 4.0).sin())


# --- transforms from outside --------------------------------------------------------------------------------------
def test_forward_derivatives_through_a_compiled_function():
    """A tensor with a derivative is no other to a kernel, which would give a result without one."""

    def function(x: Any) -> Any:
        return (x.sin() * x).cumsum(0)

    run = torch.compile(function, backend="tessera")
    x, v = torch.randn(4, 3), torch.randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(run(x), function(x))
        with forward_ad.dual_level():
            given = forward_ad.make_dual(x, v)
            found, wanted = (forward_ad.unpack_dual(f(given)) for f in (run, function))
            torch.testing.assert_close(found, wanted)


def test_batches_of_gradients_of_a_compiled_function():
    x = torch.randn(4, 3, requires_grad=True)
    y = torch.compile(lambda x: x.sin().sum(0), backend="tessera")(x)
    with pytest.raises(MissingMemory, match="took the place of its tensors"):
        torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_returned_twice_is_one_object(grad: bool):
    """What an operation returns of its `out=` is that tensor; two equal results are two tensors."""

    def f(x: Any) -> Any:
        sums = torch.empty_like(x)
        return torch.cumsum(x.detach(), 0, out=sums), torch.sum(x, 1), sums, x.sin(), x.sin()

    sums, _, again, *others = torch.compile(f, backend="tessera")(
        torch.randn(3, 4, requires_grad=grad)
    )
    assert sums is again
    assert others[0].data_ptr() != others[1].data_ptr()


@pytest.mark.parametrize("shape", [(7,), (5, 3)])
def test_a_write_to_no_elements_is_fused(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]):
    monkeypatch.setenv("TESSERA_STRICT", "1")  # a fault of ours is an error

    def f(x: Any) -> Any:
        doubled = x.flatten() * 2
        doubled[-1:1:2] += 2
        return doubled

    x = torch.randn(shape)
    assert torch.equal(torch.compile(f, backend="tessera")(x), f(x))
