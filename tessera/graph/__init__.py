"""Compiles graphs of whole-tensor operations: loops over index spaces, fused and turned into kernels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tessera.graph.torch.version import check_version


def __getattr__(name: str) -> Any:
    """`explain`, which needs torch, when somebody asks for it."""
    if name == "explain":
        check_version()
        return import_module("tessera.graph.torch.explain").explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
