"""How errors read: message, source with carets, chain of calls, notes, help; and that they survive pickling."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tessera.errors import (
    CompilationError,
    DeviceAssertionError,
    InterpreterError,
    InvalidArgument,
    IRError,
    Loc,
    OutOfResources,
    PTXASError,
    TesseraError,
    UnknownName,
)

SOURCE = """import tessera

def helper(x):
    return x + offs

def kernel(p):
\tif p:
\t\treturn helper(p)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)
    return str(path)


def test_the_whole_text(file: str) -> None:
    call = Loc(file, 8, 9, 8, 18, "kernel", first_line=6)
    here = Loc(file, 4, 15, 4, 19, "helper", first_line=3, call_site=call)
    error = UnknownName(name="offs", loc=here, help="define it").note(
        "names are looked up in the globals"
    )
    assert str(error) == (
        "error[unknown-name]: offs is not defined\n"
        f"  --> {file}:8:10 in kernel (at 3:9:)\n"
        "   |\n"
        " 8 | \t\treturn helper(p)\n"
        "   | \t\t       ^^^^^^^^^\n"
        f"  --> {file}:4:16 in helper (at 2:15:)\n"
        "   |\n"
        " 4 |     return x + offs\n"
        "   |                ^^^^\n"
        "  = note: names are looked up in the globals\n"
        "  = help: define it"
    )


def test_spans(file: str) -> None:
    """Without an end, or with one on a later line, the carets reach to the end of the line."""
    for loc in (Loc(file, 4, 11), Loc(file, 4, 11, 5, 2)):
        assert loc.render().splitlines()[-1] == "   |            ^^^^^^^^"
    assert Loc(file, 2, 0, 2, 0).render().count("\n") == 0  # an empty line has nothing to show
    gone = Loc("/nowhere/k.py", 3)
    assert gone.render() == "  --> /nowhere/k.py:3:1 in <kernel> (at 3:0:)"


def test_the_innermost_location_stays() -> None:
    inner, outer = Loc("k.py", 2), Loc("k.py", 1)
    with pytest.raises(TesseraError) as caught, outer, inner:
        raise TesseraError("no")
    assert caught.value.loc is inner
    with pytest.raises(ValueError), outer:
        raise ValueError
    assert Loc("k.py", 1).chain() == [Loc("k.py", 1)]


def test_templates_and_facts() -> None:
    error = InvalidArgument(argument="shape", function="load", problem="is not a tuple")
    assert error.message == 'invalid argument "shape" of load(): is not a tuple'
    assert error.facts == {"argument": "shape", "function": "load", "problem": "is not a tuple"}
    assert TesseraError("{kept}").message == "{kept}"
    assert "report" in str(IRError("x")) and "help" not in str(IRError("x", help=""))


def test_out_of_resources() -> None:
    error = OutOfResources(300, 227, "shared memory")
    assert (error.required, error.limit, error.name) == (300, 227, "shared memory")
    assert error.message == "out of resource: shared memory, Required: 300, Hardware limit: 227."


@pytest.mark.parametrize(
    "error",
    [
        UnknownName(name="x", loc=Loc("k.py", 3)).note("here"),
        OutOfResources(2, 1, "registers"),
        CompilationError("plain"),
    ],
)
def test_errors_survive_pickling(error: TesseraError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert vars(again) == vars(error) and again.args == error.args


def test_shapes_that_programs_written_for_triton_catch() -> None:
    """A failed assertion is what CUDA reports as a RuntimeError; messages are read as `error_message`."""
    with pytest.raises(RuntimeError):
        raise DeviceAssertionError("assertion failed")
    assert isinstance(DeviceAssertionError("no"), AssertionError)
    for kind in (CompilationError, PTXASError, InterpreterError):
        error = kind("what was wrong", help="what to do")
        assert error.error_message == "what was wrong" != str(error)
    assert pickle.loads(pickle.dumps(PTXASError("x"))).error_message == "x"
