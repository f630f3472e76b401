"""What is compiled once more without an optimisation, and what is not: by attempts that are made up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, compile
from tessera.compiler.fallback import ROUNDS, Fallback, StageFailed
from tessera.config import knobs
from tessera.config.optimizations import OPTIMIZATIONS, OptimizationWarning
from tessera.errors import (
    CompilationError,
    CompilationTimeout,
    InternalError,
    OutOfResources,
    PTXASError,
)
from tessera.ir.applications import Session, apply
from tessera.runtime.cache.disk import DiskCache

NAMES = ("cse", "licm", "prefetch", "software-pipeline", "async-mma", "loop-split", "unroll")


@pytest.fixture(autouse=True)
def lenient() -> Iterator[None]:
    with knobs.scope():
        knobs.compilation.strict = False
        yield


class Attempts:
    """Applies each optimisation twice, then raises an error of each that is at fault."""

    def __init__(self, faults: dict[str, Callable[[], Exception]], always: Exception | None = None):
        self.faults, self.always, self.count = faults, always, 0

    def __call__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.count += 1
        applied = [name for name in NAMES * 2 if apply(name)]
        if self.always is not None:
            raise self.always
        for name in applied:
            if name in self.faults:
                raise self.faults[name]()
        return {"applied": applied}, {}


def broken() -> Exception:
    return StageFailed(InternalError("stage 'llir' failed"), "gir", {})


def fallback(attempts: Attempts, theirs: bool = False) -> Fallback:
    return Fallback(attempts, "k", "", lambda: "FOLDER", lambda _: theirs)


@pytest.mark.parametrize(
    "fault",
    [broken, lambda: PTXASError("ptxas failed"), lambda: OutOfResources(300, 200, "shared memory")],
)
@pytest.mark.parametrize("name", NAMES)
def test_later_failures_are_blamed(name: str, fault: Callable[[], Exception]):
    attempts = Attempts({name: fault})
    products, metadata = fallback(attempts).run()
    assert products["applied"] == [n for n in NAMES * 2 if n != name]
    ((dropped, text),) = metadata["dropped_optimizations"]
    assert dropped == name
    assert "reproducer: FOLDER" in text
    assert metadata["remarks"] == (text,)
    assert attempts.count <= 2 + 1 + 4  # at first and at last; with nothing; halves of 14


def test_what_has_no_fault_is_compiled_once():
    attempts = Attempts({})
    assert fallback(attempts).run()[1] == {}
    assert attempts.count == 1


@pytest.mark.parametrize(
    "error",
    [CompilationError("a mistake"), CompilationTimeout("pass x", 1.0), OutOfResources(3, 2, "threads")],
)  # fmt: skip
def test_mistakes_are_not_tried_again(error: Exception, monkeypatch: pytest.MonkeyPatch):
    rows = {n: OPTIMIZATIONS[n] for n in ("cse", "licm")}  # which take no room
    monkeypatch.setattr("tests.unit.test_fallback.NAMES", tuple(rows))
    attempts = Attempts({"cse": lambda: error})
    with pytest.raises(type(error)):
        fallback(attempts).run()
    assert attempts.count == 1


@pytest.mark.parametrize("error", [broken(), PTXASError("ptxas failed")])
def test_what_fails_with_none_is_raised(error: Exception):
    attempts = Attempts({}, error)
    with pytest.raises(type(error)) as caught:
        fallback(attempts).run()
    assert caught.value is error
    assert attempts.count == 2


@pytest.mark.parametrize("error", [broken(), PTXASError("ptxas failed")])
def test_stages_of_the_user_are_not_tried_again(error: Exception):
    attempts = Attempts({"licm": lambda: error})
    with pytest.raises(type(error)):
        fallback(attempts, theirs=True).run()
    assert attempts.count == 1


def test_what_fails_before_anything_was_applied_is_not_tried_again():
    knobs.compilation.disable = "all"
    attempts = Attempts({}, broken())
    with pytest.raises(StageFailed):
        fallback(attempts).run()
    assert attempts.count == 1


@pytest.mark.parametrize("knob", ["strict", "opt_limit"])
def test_strictness(knob: str):
    setattr(knobs.compilation, knob, 1 if knob == "strict" else 10**6)
    attempts = Attempts({"licm": broken})
    with pytest.raises(StageFailed):
        fallback(attempts).run()
    assert attempts.count == 1


def test_several_faults():
    attempts = Attempts(dict.fromkeys(("unroll", "licm"), broken))
    products, metadata = fallback(attempts).run()
    assert [name for name, _ in metadata["dropped_optimizations"]] == ["licm", "unroll"]
    assert len(metadata["remarks"]) == 2
    assert set(products["applied"]) == {*NAMES} - {"unroll", "licm"}


def test_after_some_faults_everything_is_left_out():
    attempts = Attempts(dict.fromkeys(NAMES, broken))
    products, metadata = fallback(attempts).run()
    assert products["applied"] == []
    assert len(metadata["dropped_optimizations"]) == ROUNDS


def test_the_first_error_is_told_when_time_is_over():
    class Slow(Attempts):
        def __call__(self) -> Any:
            if self.count:
                raise CompilationTimeout("pass x", 1.0)
            return super().__call__()

    with pytest.raises(PTXASError):
        fallback(Slow({"licm": lambda: PTXASError("ptxas failed")})).run()


# --- a whole compilation -----------------------------------------------------------------------------------------
@tessera.jit
def added(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, (tl.load(x + i) + 1) * (tl.load(y + i) + 1))


def test_what_is_kept_in_the_cache_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    note = Session.note

    def noting(session: Session, name: str, *place: Any) -> None:
        note(session, name, *place)
        if name == "cse":
            raise ValueError("planted")

    monkeypatch.setattr(Session, "note", noting)
    kinds = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "B": "constexpr"}
    store = DiskCache(tmp_path)

    def made() -> tuple[Any, list[Any]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernel = compile(
                ASTSource(added, kinds, {"B": 16}), GPUTarget("cpu", "native", 1), {}, store
            )
        return kernel, [w for w in caught if issubclass(w.category, OptimizationWarning)]

    first, said = made()
    assert len(said) == 1
    assert said[0].filename == __file__
    monkeypatch.setattr(Session, "note", note)
    second, said = made()
    assert not said
    assert tuple(second.metadata.remarks) == first.metadata.remarks
    assert "the optimisation cse failed" in second.metadata.remarks[0]
    knobs.compilation.strict = True
    third, said = made()  # no kernel that lacks something is taken where faults are errors
    assert not said
    assert not hasattr(third.metadata, "dropped_optimizations")
