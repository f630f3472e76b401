"""docs/language.md is what the docstrings say, and its examples run: interpreter and CPU give the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tessera.language as tl
from tessera.tools import language_reference as reference
from tessera.tools.language_examples import EXAMPLES

NAMES = [name for names in reference.SECTIONS.values() for name in names]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str):
    want = reference.run(name)
    assert len(want)
    np.testing.assert_allclose(reference.run(name, "cpu"), want, rtol=1e-5, atol=1e-6)


def test_every_operation_has_an_example():
    assert set(NAMES) - set(EXAMPLES) == set(reference.WITHOUT_EXAMPLE)
    assert set(EXAMPLES) <= set(NAMES)


def test_every_operation_is_in_the_reference():
    from tessera.language.builtin import Builtin
    from tessera.language.callable import JITCallable

    public = {n for n in tl.__all__ if isinstance(getattr(tl, n), (Builtin, JITCallable))}
    assert public <= set(NAMES) | {"aggregate_replace"}


@pytest.mark.filterwarnings("ignore")
def test_the_file_is_up_to_date():
    path = Path(__file__).parents[2] / "docs" / "language.md"
    assert path.read_text() == reference.document(), (
        "run python3 -m tessera.tools.language_reference"
    )
