"""What a kernel's key is made of besides its text: constants and functions that it reaches in other modules."""

from __future__ import annotations

import copy
import ctypes
import enum
import functools
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import ForbiddenGlobal
from tessera.language.captures import fingerprint

SETTINGS = """
import enum
import tessera
import tessera.language as tl

N = {n}

class Mode(enum.Enum):
    A = N

class Plain:
    V = N

def plain(x):
    return x + N

@tessera.constexpr_function
def direct(x):
    return x + N

@tessera.constexpr_function
def through(x):
    return (lambda y: plain(y))(x)
"""

KERNELS = """
import numpy as np
import settings
import tessera
import tessera.language as tl

@tessera.jit
def callee(out, i, value: tl.constexpr = settings.N):
    tl.store(out + i, value)

@tessera.jit
def kernel(out, F: tl.constexpr):
    tl.store(out, settings.N)
    tl.store(out + 1, settings.Mode.A.value)
    tl.store(out + 2, settings.Plain.V)
    tl.store(out + 3, settings.plain(0))
    tl.store(out + 4, settings.direct(0))
    tl.store(out + 5, settings.through(0))
    callee(out, 6)
    tl.store(out + 7, F(0))

def run(F):
    out = np.zeros(8, np.int32)
    kernel[(1,)](out, F)
    return out.tolist()

if __name__ == "__main__":
    print(run(settings.direct))
"""


def test_processes_with_other_constants(tmp_path: Path):
    """The second run must not take the first one's kernel off the disk; the third may."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    root = Path(tessera.__file__).parents[1]
    env = {"PYTHONPATH": f"{root}:{tmp_path}", "TESSERA_CACHE_DIR": str(tmp_path / "cache")}
    for n in (5, 7, 5):
        (tmp_path / "settings.py").write_text(SETTINGS.format(n=n))
        done = subprocess.run(
            [sys.executable, "-B", "-m", "kernels"],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.strip() == str([n] * 8)


@tessera.constexpr_function
def twice(x: int) -> int:
    return x * 2


@pytest.mark.parametrize("thing", [twice, tl.load, tl.sum, tl.exp, tl.extra.libdevice.tanh])
def test_what_stands_for_a_function_is_pickled_by_name(thing: Any):
    assert pickle.loads(pickle.dumps(thing)) is thing
    assert copy.deepcopy(thing) is thing


def test_compile_time_functions_have_a_source():
    assert twice.src == "def twice(x: int) -> int:\n    return x * 2\n"
    assert twice.__globals__ is globals()


LIBRARY = """
from typing import NamedTuple
import tessera
import tessera.language as tl

@tessera.jit
def one(x):
    return x + 1

@tessera.jit
def two(x):
    return x + 2

f, g = {names}
op = {op}
KIND = {kind}

class Pair(NamedTuple):
    {first}: object
    {second}: object

@tessera.aggregate
class Group:
    v: tl.tensor
    c: tl.constexpr = {n}

    @tessera.jit
    def get(self):
        return self.v * {n}

    @staticmethod
    @tessera.jit
    def scaled(x):
        return x * {n}

@tessera.heuristics({{}})
@tessera.heuristics({{}})
@tessera.jit
def wrapped(x):
    return x * {n}
"""

USER = """
import numpy as np
import tessera
import tessera.language as tl
import library
from library import Group, KIND, Pair, f, g, op, wrapped

@tessera.jit
def kernel(out, C: tl.constexpr):
    tl.store(out, f(1) * 10 + g(1))
    tl.store(out + 1, op(4.0))
    tl.store(out + 2, library.op(4.0))
    pair = Pair(1, 2)
    tl.store(out + 3, pair.o * 10 + pair.t)
    group = Group(tl.load(out) * 0 + 1)
    tl.store(out + 4, group.get())
    tl.store(out + 5, group.scaled(1))
    tl.store(out + 6, group.c)
    tl.store(out + 7, wrapped(1))
    tl.store(out + 8, (tl.load(out) * 0 + 2.5).to(KIND))
    tl.store(out + 9, C(tl.load(out) * 0 + 1).get())

out = np.zeros(10, np.float32)
kernel[(1,)](out, Group)
print(out.tolist())
"""


def test_processes_with_another_library(tmp_path: Path):
    """The same names for other functions, types and classes."""
    (tmp_path / "user.py").write_text(USER)
    root = Path(tessera.__file__).parents[1]
    env = {"PYTHONPATH": f"{root}:{tmp_path}", "TESSERA_CACHE_DIR": str(tmp_path / "cache")}
    for names, op, kind, n, want in (
        ("one, two", "tl.sqrt", "tl.int32", 5, [23, 2, 2, 12, 5, 5, 5, 5, 2, 5]),
        ("two, one", "tl.exp2", "tl.float32", 7, [32, 16, 16, 21, 7, 7, 7, 7, 2.5, 7]),
    ):
        text = LIBRARY.format(names=names, first=names[0], second=names[5], op=op, kind=kind, n=n)
        (tmp_path / "library.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-B", "-m", "user"],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.strip() == str([float(x) for x in want])


def functions(offset: int, inner: Any = None) -> Any:
    def add(x: int, by: int = 1) -> int:
        return (inner or abs)(x + by + offset)

    return add


def test_functions_are_told_apart_by_what_they_reach():
    one, two = functions(1), functions(2)
    assert fingerprint(one) == fingerprint(functions(1)) != fingerprint(two)
    assert fingerprint(functions(0, one)) != fingerprint(functions(0, two))
    one.__defaults__ = (3,)
    assert fingerprint(one) != fingerprint(functions(1))


def test_functions_that_reach_themselves():
    def count(n: int) -> int:
        return n if n == 0 else count(n - 1)

    assert fingerprint(count) == fingerprint(count)


@tessera.constexpr_function
def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


@tessera.constexpr_function
def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def test_compile_time_functions_that_reach_each_other():
    @tessera.constexpr_function
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    @tessera.jit
    def store(out, N: tl.constexpr):
        tl.store(out, fibonacci(N) + even(N))

    out = np.zeros(1, np.int32)
    store[(1,)](out, 10)
    assert out[0] == 56
    assert even.cache_key != odd.cache_key


def test_values():
    class Mode(enum.Enum):
        A = 1
        B = 2

    kinds = [1, 1.0, True, "1", None, (1,), [1], {1}, {1: 1}, Mode.A, Mode.B, tl.int32, tl.int64]
    assert len({fingerprint(x) for x in kinds}) == len(kinds)
    assert fingerprint({2, 1}) == fingerprint({1, 2})
    # An array's text leaves out the middle.
    zeros, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1
    assert fingerprint(zeros) != fingerprint(other)
    assert fingerprint((functions(1),)) != fingerprint((functions(2),))


def test_modules_of_modules():
    outer, inner = ModuleType("outer"), ModuleType("inner")
    outer.inner = inner  # type: ignore[attr-defined]
    inner.size = 4  # type: ignore[attr-defined]
    outer.back = outer  # type: ignore[attr-defined]

    def size() -> int:
        return outer.inner.size + outer.back.inner.size  # type: ignore[attr-defined]

    before = fingerprint(size)
    inner.size = 5  # type: ignore[attr-defined]
    assert fingerprint(size) != before


LIMIT = tl.constexpr(3)


@tessera.jit
def reads_limit(out):
    tl.store(out, LIMIT)


def test_a_bare_number_is_refused_though_an_equal_constexpr_is_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    out = np.zeros(1, np.int32)
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        reads_limit[(1,)](out)
        monkeypatch.setitem(globals(), "LIMIT", 3)
        again = tessera.jit(reads_limit.fn)
        with pytest.raises(ForbiddenGlobal, match="LIMIT"):
            again[(1,)](out)


class Opaque:
    """Equal to itself alone."""

    size = 3


OPAQUE = tl.constexpr(Opaque())
SIZES = tl.constexpr([3])


@tessera.jit
def reads_objects(out):
    tl.store(out, OPAQUE.size + SIZES[0])


def test_captured_objects(tmp_path: Path):
    """An object without a comparison has not changed as long as it is the same; the contents of others may."""
    out = np.zeros(1, np.int32)
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        knobs.runtime.default_backend = "cpu"
        reads_objects[(1,)](out)
        reads_objects[(1,)](out)
        assert out[0] == 6
        SIZES.value.append(4)
        with pytest.raises(RuntimeError, match="SIZES has changed"):
            reads_objects.warmup(out, grid=(1,))


class Evasive:
    """Answers every attribute with itself, as mocks and lazy modules do."""

    def __getattr__(self, name: str) -> object:
        return self

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "odd",
    [ctypes.CDLL(None).abs, Evasive(), functools.partial(max, 1), np.add, print, object(), Mock()],
    ids=lambda x: type(x).__name__,
)
def test_globals_that_local_variables_hide(odd: object, tmp_path: Path):
    """A kernel's variable may have the name of any object of its module."""
    scope = fills.__globals__
    out = np.zeros(4, np.int32)
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        knobs.runtime.default_backend = "cpu"
        scope["hidden"] = odd
        try:
            tessera.jit(fills.fn)[(1,)](out)
        finally:
            del scope["hidden"]
    assert out.tolist() == [0, 1, 2, 3]


@tessera.jit
def fills(out):
    hidden = tl.arange(0, 4)
    tl.store(out + hidden, hidden)
