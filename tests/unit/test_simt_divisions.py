"""64-bit indices of a thread are divided together, in 32 bits if all of them fit (`joint-divisions`)."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.simt_kit import Compiled

C = "constexpr"


@tessera.jit
def parts_kernel(out, start, by, N: tl.constexpr, WHAT: tl.constexpr):
    i = tl.arange(0, N)
    at = start + i.to(tl.int64)
    if WHAT == "quotient":
        tl.store(out + i, at // by)
    elif WHAT == "rest":
        tl.store(out + i, at % by)
    elif WHAT == "rest first":
        tl.store(out + i, at % by)
        tl.store(out + N + i, at // by)
    else:
        tl.store(out + i, at // by)
        tl.store(out + N + i, at % by)


STARTS = [0, 5, 2**31 - 3, 2**32 - 65, 2**32 - 3, 2**40, -1, -1000, -(2**63)]


@pytest.mark.parametrize("off", ["", "joint-divisions"])
@pytest.mark.parametrize("what", ["quotient", "rest", "rest first", "both"])
@pytest.mark.parametrize("divisor", ["i32", "i64"])
def test_parts_of_indices(what: str, divisor: str, off: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    signature = {"out": "*i64", "start": "i64", "by": divisor, "N": C, "WHAT": C}
    found = Compiled(parts_kernel, signature, {"N": 128, "WHAT": what}, num_warps=1)
    assert found.count(r"@%p\d+ bra") == (4 if off else 1)
    for start in STARTS:
        for by in [1, 7, 64, 2**31 - 1] + ([2**32, 2**33 + 1, 2**62] if divisor == "i64" else []):
            out = np.zeros(256, np.int64)
            found.run(out, start, by)
            at = start + np.arange(128, dtype=np.int64)
            whole = (np.sign(at) * (np.abs(at.astype(object)) // by)).astype(np.int64)
            parts = {
                "quotient": [whole],
                "rest": [at - whole * by],
                "rest first": [at - whole * by, whole],
            }
            wanted = np.concatenate(parts.get(what, [whole, at - whole * by]))
            np.testing.assert_array_equal(out[: len(wanted)], wanted, f"{start} {by}")
