"""Whatever a kernel reads by name may change: a launch computes with what is there now, or says that it changed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.errors import ChangedGlobal

SETTINGS = """
import enum
import typing
import tessera
import tessera.language as tl

NUMBER = {n}
DTYPE = tl.int{bits}
CONSTANT = tl.constexpr({n})
TEXT = "{n}"
TUPLE = ({n}, "{n}", tl.int{bits})
LIST = [1, {n}]
NESTED = {{"a": [{n}]}}

@tessera.jit
def jitted(x):
    return x + {n}

@tessera.constexpr_function
def direct(x):
    return x + {n}

def plain(x):
    return x + {n}

def inner(x):
    return x + NUMBER

@tessera.constexpr_function
def through(x):
    return inner(x)

class Mode(enum.Enum):
    A = {n}

class Plain:
    VALUE = {n}

class Fields(typing.NamedTuple):
    {first}: object
    {second}: object

@tessera.aggregate
class Group:
    v: tl.tensor

    @tessera.jit
    def get(self):
        return self.v + {n}

wrapped = tessera.heuristics({{}})(jitted)
"""

# What a kernel reads by name, and what an expression makes of it: 5 or 9.
KINDS = {
    "NUMBER": "NUMBER", "DTYPE": "tl.zeros((1,), DTYPE).dtype.primitive_bitwidth // 8 + 1", "CONSTANT": "CONSTANT",
    "TEXT": "int(TEXT)", "TUPLE": "TUPLE[0]", "LIST": "LIST[1]", "NESTED": "NESTED['a'][0]", "jitted": "jitted(0)",
    "direct": "direct(0)", "through": "through(0)", "Mode": "Mode.A.value", "Plain": "Plain.VALUE",
    "Fields": "Fields(5, 9).first", "Group": "Group(tl.to_tensor(0)).get()", "wrapped": "wrapped(0)",
}  # fmt: skip
ONLY_OF_MODULES = {"plain": "plain(0)"}  # kernels see other functions through a module only

KERNEL = """
import numpy as np
import tessera
import tessera.language as tl
{imports}

@tessera.jit
def helper():
    return {expression}

@tessera.jit
def kernel(out):
    tl.store(out, {body})
"""

BODIES = {"itself": "{}", "helper": "helper()"}


def write(path: Path, n: int) -> None:
    first, second = ("first", "second") if n == 5 else ("second", "first")
    bits = 32 if n == 5 else 64
    path.write_text(SETTINGS.format(n=n, bits=bits, first=first, second=second))


class Program:
    """A module of settings, and a module with a kernel that reads one of them."""

    def __init__(self, folder: Path, name: str, expression: str, by_module: bool, body: str):
        write(folder / "watched_settings.py", 5)
        self.settings = importlib.import_module("watched_settings")
        if by_module:
            imports, text = "import watched_settings as s", expression.replace(name, f"s.{name}", 1)
        else:
            imports, text = f"from watched_settings import {name}", expression
        source = KERNEL.format(imports=imports, expression=text, body=BODIES[body].format(text))
        (folder / "watched_kernel.py").write_text(source)
        self.module: Any = importlib.import_module("watched_kernel")
        self.folder, self.name, self.by_module = folder, name, by_module

    def launch(self) -> int:
        out = np.zeros(1, np.int32)
        self.module.kernel[(1,)](out)
        return int(out[0])

    def change(self, n: int) -> None:
        """As a programmer would who edits the settings and loads them again."""
        write(self.folder / "watched_settings.py", n)
        importlib.reload(self.settings)
        if not self.by_module:
            setattr(self.module, self.name, getattr(self.settings, self.name))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(knobs.compilation, "allow_non_constexpr_globals", True)
    yield tmp_path
    for name in ("watched_settings", "watched_kernel"):
        sys.modules.pop(name, None)


def cases() -> Iterator[Any]:
    for name, expression in KINDS.items():
        for by_module in (False, True):
            for body in BODIES:
                label = f"{name}-{'attribute' if by_module else 'global'}-{body}"
                yield pytest.param(name, expression, by_module, body, id=label)
    for name, expression in ONLY_OF_MODULES.items():
        yield pytest.param(name, expression, True, "itself", id=name)


@pytest.mark.parametrize("launches", [0, 1, 3])
@pytest.mark.parametrize(("name", "expression", "by_module", "body"), [*cases()])
def test_what_a_kernel_reads_may_change(
    folder: Path, name: str, expression: str, by_module: bool, body: str, launches: int
):
    """After no launch, one in Python and some that native code made."""
    program = Program(folder, name, expression, by_module, body)
    for _ in range(launches):
        assert program.launch() == 5
    program.change(9)
    constant = not by_module and name.isupper()
    if constant and launches:
        for _ in range(3):
            with pytest.raises(ChangedGlobal, match=f"Global variable {name} has changed"):
                program.launch()
        program.change(5)  # and back
        assert [program.launch() for _ in range(3)] == [5, 5, 5]
    else:
        assert [program.launch() for _ in range(3)] == [9, 9, 9]
        if not constant:
            program.change(5)
            assert [program.launch() for _ in range(3)] == [5, 5, 5]


def test_variables_of_enclosing_functions():
    """In cells; what stands there may change as long as the enclosing function does it."""

    def outer(n: Any) -> tuple[Any, Any]:
        @tessera.jit
        def kernel(out):
            tl.store(out, n)

        def change(x: Any) -> None:
            nonlocal n
            n = x

        return kernel, change

    kernel, change = outer(tl.constexpr(5))
    out = np.zeros(1, np.int32)
    for n in (5, 9, 5, True):
        change(tl.constexpr(n))
        for _ in range(3):
            kernel[(1,)](out)
            assert out[0] == n


def test_functions_given_to_a_kernel(folder: Path):
    """What an argument reads by name counts as well."""
    program = Program(folder, "NUMBER", "NUMBER", True, "helper")
    out = np.zeros(1, np.int32)
    for n in (5, 9, 5):
        program.change(n)
        for _ in range(3):
            applies[(1,)](out, program.module.helper)
            assert out[0] == n


@tessera.jit
def applies(out, F: tl.constexpr):
    tl.store(out, F())


def test_an_equal_constant_is_no_change(folder: Path):
    program = Program(folder, "CONSTANT", "CONSTANT", False, "itself")
    assert program.launch() == 5
    program.module.CONSTANT = tl.constexpr(5)
    assert program.launch() == 5
    program.module.CONSTANT = tl.constexpr(5.0)  # another type: other code
    with pytest.raises(ChangedGlobal):
        program.launch()


def test_constants_that_change_in_place(folder: Path):
    program = Program(folder, "LIST", "LIST[1]", True, "itself")
    assert [program.launch() for _ in range(3)] == [5, 5, 5]
    program.settings.LIST[1] = 9
    assert [program.launch() for _ in range(3)] == [9, 9, 9]


@pytest.mark.parametrize("first", ["helper", "kernel"])
def test_kernels_on_disk_are_what_their_keys_say(folder: Path, first: str):
    """A helper's key that was made with another constant must not go into the key of a kernel compiled now."""
    program = Program(folder, "CONSTANT", "CONSTANT", False, "helper")

    def text() -> str:
        source = ASTSource(program.module.kernel, {"out": "*i32"})
        return tessera.compile(source, target=GPUTarget("cpu", "generic", 0)).asm["tir"]

    _ = getattr(program.module, first).cache_key
    program.change(9)
    assert "value=9" in text()
    program.change(5)
    assert "value=5" in text()


def test_captured_constants_do_not_slow_launches_down(folder: Path):
    """Native code sees that the constant is the object that it was."""
    program = Program(folder, "CONSTANT", "CONSTANT", False, "itself")
    program.launch()
    program.launch()
    kernel, calls = program.module.kernel, []
    kernel._refresh = lambda values: calls.append(values)  # Python's way comes through here
    assert [program.launch() for _ in range(3)] == [5, 5, 5]
    assert not calls
