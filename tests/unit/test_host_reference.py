"""docs/host.md is what the docstrings of the host API say, and their examples give what they show."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel
from tessera.compiler.kernel import AsmDict
from tessera.config import knobs
from tessera.runtime.driver import driver
from tessera.tools import host_reference as reference


@tessera.jit
def nothing(x):
    tl.store(x, 1.0)


NAMES = [name for names in reference.SECTIONS.values() for name in names]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_example(name: str) -> None:
    text = inspect.getdoc(reference.documented(name)) or ""
    test = doctest.DocTestParser().get_doctest(f"{reference.SETUP}\n{text}", {}, name, name, 0)
    assert len(test.examples) > reference.SETUP.count(">>>")
    said: list[str] = []
    driver.set_active("cpu")
    try:
        with knobs.scope():
            knobs.cpu.isa, knobs.autotuning.print = "native", False  # what the examples print
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            result = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
    finally:
        driver.reset_active()
    assert result.failed == 0, "".join(said)


def test_every_name_of_the_package_is_there() -> None:
    missing = {
        name
        for name in tessera.__all__
        if not inspect.ismodule(found := getattr(tessera, name))
        and not (inspect.isclass(found) and issubclass(found, BaseException))  # in docs/errors.md
    } - set(NAMES)
    assert missing == {"KernelInterface"}  # what others derive from


@pytest.mark.parametrize(
    "target", [GPUTarget("cpu", "avx2", 1), GPUTarget("cuda", 90, 32)], ids=["cpu", "gpu"]
)
def test_what_is_said_of_compiled_kernels_is_there(target: GPUTarget) -> None:
    made = tessera.compile(ASTSource(nothing, {"x": "*fp32"}), target=target)
    text = inspect.getdoc(CompiledKernel) or ""
    attributes, asm, metadata = re.split(r"\| `asm\[…\]`|\| `metadata\.…`", text)
    where = {"all", "CPU" if target.backend == "cpu" else "GPU"}
    for table, known in ((asm, AsmNames(made.asm)), (metadata, made.metadata._fields)):
        rows = re.findall(r"^\| (`.*`) \| (\w+) \| .* \|$", table, re.MULTILINE)
        names = {n for cell, part in rows if part in where for n in re.findall(r"\w+", cell)}
        assert len(names) >= 5 and [n for n in names if n not in known] == []
    cells = re.findall(r"^\| (`.*`) \| .* \|$", attributes, re.MULTILINE)
    names = {n for cell in cells for n in re.findall(r"\w+", cell)}
    assert names <= {*dir(made), *CompiledKernel.__annotations__} and len(names) >= 10


class AsmNames:
    """What `asm` gives; not every machine has a disassembler for `sass`."""

    def __init__(self, asm: AsmDict):
        self.asm = asm

    def __contains__(self, name: str) -> bool:
        return name == "sass" or bool(self.asm[name])
