"""A part of torch's op_db under backend="tessera": values, strides, gradients (op_db_sweep.py does all of it)."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's op_db imports it

from tests.graph.op_db_sweep import cases, full_name, judge

CHOSEN = argparse.Namespace(
    device="cpu", part=40, which=5, only=None, samples=1, dtypes="float32,bfloat16,int64"
)
CASES = [
    pytest.param(
        op, sample, backward, id=f"{full_name(op)}-{str(dtype)[6:]}{'-backward' * backward}"
    )
    for op, dtype, sample, backward in cases(CHOSEN)
]


@pytest.mark.parametrize(("op", "sample", "backward"), CASES)
def test_op(op: Any, sample: Any, backward: bool):
    found = judge(op, sample, backward, "compiled")
    assert found.result not in ("differs", "error"), found.why
