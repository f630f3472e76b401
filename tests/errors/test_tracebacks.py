"""What Python prints of an error: the line that launched the kernel and the error's text, no frame of ours."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.errors import CompilationError, InternalError, TesseraError
from tessera.utilities import is_own

PACKAGE = str(Path(tessera.__file__).parent)


@tessera.jit
def misspelt(x, N: tl.constexpr):
    for i in range(N):
        if i > 2:
            tl.store(x + i, missing)  # noqa: F821  # pyright: ignore


@tessera.jit
def reaches_out(x, N: tl.constexpr):
    tl.store(x + N, 1.0)


LAUNCHES: dict[str, Callable[[], Any]] = {
    "compilation": lambda: misspelt[(1,)](np.zeros(8, np.float32), 8),
    "warm-up": lambda: misspelt.warmup(np.zeros(8, np.float32), 8, grid=(1,)),
    "check": lambda: reaches_out[(1,)](np.zeros(8, np.float32), 8, debug="check"),
    "run": lambda: misspelt.run(np.zeros(8, np.float32), 8, grid=(1,), warmup=False),
    "ahead of time": lambda: tessera.compile(
        ASTSource(misspelt, {"x": "*fp32"}, {"N": 8}), target=GPUTarget("cpu", "avx2", 1)
    ),
}


def frames(launch: Callable[[], Any], kind: type = TesseraError) -> tuple[int, int]:
    """Frames of tessera's in the traceback of an error, and all."""
    with pytest.raises(kind) as caught:
        launch()
    found = traceback.extract_tb(caught.value.__traceback__)
    return sum(f.filename.startswith(PACKAGE) for f in found), len(found)


@pytest.mark.parametrize("name", LAUNCHES)
def test_no_frames_of_tessera(name: str) -> None:
    ours, all_frames = frames(LAUNCHES[name])
    assert ours == 0
    assert all_frames > ours  # the launch is there


@tessera.constexpr_function
def entry(n: int) -> int:
    return {1: 2}[n]


@tessera.jit
def looks_up(x, N: tl.constexpr):
    tl.store(x, entry(N))


@tessera.jit
def adds_nothing(x, N: tl.constexpr):
    tl.store(x, None + N)  # pyright: ignore


@tessera.jit
def calls(x, kernel: tl.constexpr, N: tl.constexpr):
    kernel(x, N)


def test_causes() -> None:
    """The author's own frames; no frames if an operator went wrong, whose message the error repeats."""
    with pytest.raises(TesseraError, match="KeyError: 8") as caught:
        looks_up[(1,)](np.zeros(8, np.float32), 8)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert [f.name for f in traceback.extract_tb(cause.__traceback__)] == ["entry"]
    with pytest.raises(TesseraError, match="TypeError: unsupported operand") as caught:
        adds_nothing[(1,)](np.zeros(8, np.float32), 8)
    cause = caught.value.__cause__
    assert isinstance(cause, TypeError)
    assert cause.__traceback__ is None


@pytest.mark.parametrize(
    ("kernel", "shown"), [(looks_up, "KeyError: 8\n\nThe above"), (adds_nothing, "")]
)
def test_printed_causes(kernel: Any, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback shows what the error's own text does not; programs that ask are told every cause."""
    with pytest.raises(CompilationError) as caught:
        calls[(1,)](np.zeros(8, np.float32), kernel, 8)
    error = caught.value
    sys.__excepthook__(type(error), error, error.__traceback__)
    for text in (capsys.readouterr().err, "".join(traceback.format_exception(error))):
        assert text.count("direct cause") == bool(shown)
        assert text.startswith("Traceback") and shown in text
        assert text.count("error[compilation]") == 1
    assert type(error.__cause__) is CompilationError  # of the called function, as Triton has it
    assert isinstance(error.__cause__.__cause__, KeyError if shown else TypeError)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.__cause__ is None


def test_all_frames_on_request() -> None:
    with knobs.compilation.scope():
        knobs.compilation.front_end_debugging = True
        ours, _ = frames(LAUNCHES["compilation"])
    assert ours > 12


def test_failures_of_tessera_keep_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("tessera.frontend.frontend.FrontEnd.run", broken)
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        ours, _ = frames(LAUNCHES["ahead of time"], (InternalError, RuntimeError))  # type: ignore[arg-type]
    assert ours > 4


def test_files_beside_the_package_are_no_frames_of_tessera() -> None:
    """As in a clone with `tessera_kernels.py` in its top folder."""
    for path, own in ((f"{PACKAGE}_kernels.py", False), (f"{PACKAGE}/jit.py", True)):
        found: dict[str, Any] = {}
        exec(compile("import sys\nframe = sys._getframe()", path, "exec"), found)
        assert is_own(found["frame"]) is own
