"""docs/language/ is what the docstrings say, and what they say is true: examples give the stated dtype, shape and
elements on the interpreter and on the CPU, and what is said to raise an error raises it."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import tessera.language as tl
from tessera.errors import TesseraError
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable
from tessera.tools import language_reference as reference
from tessera.tools.language_examples import Raised, parsed, run

NAMES = [name for names in reference.SECTIONS.values() for name in names]
DOCUMENTED = [*NAMES, "extra.libdevice"]
EXAMPLES = [name for name in DOCUMENTED if name not in reference.WITHOUT_EXAMPLE]
RAISED = [
    pytest.param(raised, id=f"{name}-{raised.code}")
    for name in DOCUMENTED
    for raised in parsed(reference.operation(name)).raises
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str):
    documented = parsed(reference.operation(name))
    found = run(documented.statements)
    assert str(found) == documented.result
    assert len(found.values)
    on_cpu = run(documented.statements, "cpu")
    assert (on_cpu.dtype, on_cpu.shape) == (found.dtype, found.shape)
    np.testing.assert_allclose(on_cpu.values, found.values, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("raised", RAISED)
def test_error(raised: Raised):
    with pytest.raises(TesseraError) as caught:
        run(f"r = 0\n{raised.statements}")
    assert caught.value.code == raised.code


def test_a_docstring_is_taken_apart():
    def operation() -> None:
        """What it does.

        More.

        Raises:
            invalid-argument: `n` is odd: `tl.op(1)`.
            shape-mismatch: the shape, which is long to say, is another one:
                `tl.op(n)`.

        Example:
            >>> for k in tl.range(4):
            ...     r = k
            >>> r == 3
            int1: 1
        """

    found = parsed(operation)
    assert found.text == "What it does.\n\nMore."
    assert found.raises == (
        Raised("invalid-argument", "`n` is odd", "tl.op(1)"),
        Raised("shape-mismatch", "the shape, which is long to say, is another one", "tl.op(n)"),
    )
    assert found.statements == "for k in tl.range(4):\n    r = k\nr = r == 3"
    assert found.result == "int1: 1"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_line_of_a_section_is_understood(name: str):
    operation = reference.operation(name)
    text = inspect.getdoc(operation) or ""
    sections = re.findall(r"^\w+:$", text, re.MULTILINE)
    documented = parsed(operation)
    assert ("Example:" in sections) == bool(documented.statements)
    assert documented.text
    raises = re.search(r"Raises:\n(.*?)(\n\n|\Z)", text, re.DOTALL)
    stated = len(re.findall(r"^ {4}\S", raises[1], re.MULTILINE)) if raises else 0
    assert stated == len(documented.raises)


def test_every_operation_is_in_the_reference():
    public = {n for n in tl.__all__ if isinstance(getattr(tl, n), (Builtin, JITCallable))}
    assert public <= set(NAMES) | {"aggregate_replace"}
    for owner in ("target_info", "extra.cuda"):
        module = reference.operation(owner)
        held = {f"{owner}.{n}" for n, x in vars(module).items() if isinstance(x, Builtin)}
        assert held <= set(NAMES)
