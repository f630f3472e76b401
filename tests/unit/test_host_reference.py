"""docs/host.md is what the docstrings of the host API say, and their examples give what they show."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import tessera
from tessera.config import knobs
from tessera.runtime.driver import driver
from tessera.tools import host_reference as reference

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


def test_the_file_is_up_to_date() -> None:
    path = Path(__file__).parents[2] / "docs" / "host.md"
    assert path.read_text("utf-8") == reference.document(), (
        "run python3 -m tessera.tools.host_reference"
    )
