"""A part of torch's op_db under backend="tessera": values, strides, gradients (op_db_sweep.py does all of it)."""

from __future__ import annotations

import argparse

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's op_db imports it

from tests.graph.op_db_sweep import Case, cases, judge

CHOSEN = argparse.Namespace(
    device="cpu", part=40, which=5, only=None, samples=1, layouts="given", dtypes="float32,bfloat16,int64"
)  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in cases(CHOSEN)])
def test_op(case: Case):
    found = judge(case.op, case.sample, case.backward, "compiled")
    assert found.result not in ("differs", "error"), found.why
