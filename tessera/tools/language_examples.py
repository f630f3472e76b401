"""Finds and runs the examples in the docstrings of the language.

A docstring ends with the errors that the operation raises, by their codes in docs/errors.md, and with an example:

    Raises:
        invalid-argument: the extent is no power of two: `tl.arange(0, 3)`.

    Example:
        >>> tl.arange(4, 8)
        int32[4]: 4, 5, 6, 7

Both are statements of a kernel that begins with SETUP and can use HELPERS. The last line of an example is an
expression (or a statement that sets `r`); its dtype, shape and elements follow. The code in backquotes after an error
raises it.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tessera.config import knobs
from tessera.runtime.driver import driver

SETUP = """\
i = tl.arange(0, 8)
x = tl.load(X + i)
n = tl.load(N + i)
i16 = tl.arange(0, 16)
a = tl.load(A + i16[:, None] * 16 + i16[None, :])
"""

HELPERS = """\
@tessera.jit
def add(u, v):
    return u + v


@tessera.jit
def first_larger(value1, index1, value2, index2):
    take = (value1 > value2) | ((value1 == value2) & (index1 < index2))
    return tl.where(take, value1, value2), tl.where(take, index1, index2)


@tessera.jit
def root_or_zero(v):
    if v > 0:
        return tl.sqrt_rn(v)
    return 0.0
"""

_KERNEL = """\
import tessera
import tessera.language as tl

SEEN = []


@tessera.constexpr_function
def seen(dtype, shape):
    SEEN.append((dtype, shape))


{helpers}

@tessera.jit
def kernel(X, N, A, Z, F, OUT):
{statements}
    r = tl.to_tensor(r)
    seen(r.dtype, r.shape)
    if len(r.shape) == 0:
        tl.store(OUT, r.to(tl.float64))
    else:
        tl.store(OUT + tl.arange(0, r.numel), tl.reshape(r, r.numel).to(tl.float64))
"""
_SECTIONS = re.compile(r"\n+(Raises|Example):\n")
_RAISED = re.compile(r"([a-z-]+): (.*?):\s+`([^`]+)`\.", re.DOTALL)


@dataclass(frozen=True)
class Raised:
    """An error that an operation raises: its code in the catalogue, when it is raised, and statements that raise it."""

    code: str
    reason: str
    statements: str


@dataclass(frozen=True)
class Docstring:
    """A docstring's parts. `statements` set `r`, the example's result; `result` is its expected text."""

    text: str
    raises: tuple[Raised, ...]
    statements: str
    result: str


@dataclass(frozen=True)
class Result:
    """The tensor that an example computes: dtype, shape, and elements as fp64."""

    dtype: str
    shape: tuple[int, ...]
    values: np.ndarray

    def __str__(self) -> str:
        """Return `int32[4]: 4, 5, 6, 7`; of more than 16 elements the first ones."""
        shape = str(list(self.shape)) if self.shape else ""
        texts = [f"{v:.6g}" for v in self.values[:16]] + ["…"] * (len(self.values) > 16)
        return f"{self.dtype}{shape}: {', '.join(texts)}"


def parsed(operation: object) -> Docstring:
    """Return the parts of an operation's docstring; missing parts are empty."""
    text, *found = _SECTIONS.split(inspect.getdoc(operation) or "")
    sections = dict(zip(found[::2], found[1::2], strict=True))
    raises = _RAISED.findall(_dedented(sections.get("Raises", "")))
    lines = _dedented(sections.get("Example", "")).splitlines()
    code = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
    if code and not re.match(r"(\s|r\b[^=]*=[^=])", code[-1]):
        code[-1] = f"r = {code[-1]}"
    return Docstring(
        text, tuple(Raised(c, " ".join(why.split()), s) for c, why, s in raises),
        "\n".join(code), "\n".join(lines[len(code) :]).strip(),
    )  # fmt: skip


def _dedented(text: str) -> str:
    return inspect.cleandoc("\n" + text)


def inputs() -> list[np.ndarray]:
    """Return X, N, A, Z, F and OUT of the examples."""
    rows = np.arange(16)
    return [
        np.array([-2, -1, -0.5, 0, 0.5, 1, 2, 3], np.float32),
        np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32),
        ((rows[:, None] + 2 * rows[None, :]) % 5).astype(np.float32),
        np.zeros(64, np.int32),
        np.zeros(256, np.float32),
        np.full(256, np.nan),
    ]


def source(statements: str) -> str:
    """Return the text of a module with the kernel of an example."""
    lines = [*SETUP.splitlines(), *statements.splitlines()]
    return _KERNEL.format(
        helpers=HELPERS, statements="\n".join(f"    {line}" if line else "" for line in lines)
    )


def run(statements: str, target: str = "interpreter") -> Result:
    """Run `statements` and return what they set `r` to; errors of the kernel are raised."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "example_of_the_language.py"
        path.write_text(source(statements), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        args = inputs()
        driver.set_active(target)
        try:
            with knobs.compilation.scope():
                knobs.compilation.always_compile = True  # `seen` is called during compilation
                module.kernel[(1,)](*args)
        finally:
            driver.reset_active()
    dtype, dims = module.SEEN[-1]
    shape: tuple[int, ...] = tuple(map(int, dims))
    return Result(str(dtype), shape, args[-1][: math.prod(shape)])
