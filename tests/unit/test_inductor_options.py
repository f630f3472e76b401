"""What Inductor's kernels are compiled with."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.compat_parts import options_for_inductor


@pytest.mark.parametrize("given", [None, {"num_warps": 8}])
def test_launches_written_in_cpp_need_kernels_without_a_precondition(
    given: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpp in (True, False):
        monkeypatch.setitem(sys.modules, "torch._inductor.config", SimpleNamespace(cpp_wrapper=cpp))
        found = options_for_inductor(given)
        assert found == ({**(given or {}), "pointer_maps": False} if cpp else given)
