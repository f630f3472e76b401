"""The texts of errors in kernels, whole, as they are printed."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.errors import control_flow_and_syntax, names_and_types
from tests.errors.kernel_source import error_of, text_of


@pytest.mark.parametrize(
    ("kind", "source", "text", "constants"),
    [*names_and_types.CASES, *control_flow_and_syntax.CASES],
)
def test_error_text(tmp_path: Path, kind: type, source: str, text: str, constants: dict[str, Any]):
    error = error_of(tmp_path, source, **constants)
    assert type(error) is kind
    assert text_of(tmp_path, error) == textwrap.dedent(text).strip("\n")
