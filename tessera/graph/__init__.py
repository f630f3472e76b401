"""Compiles graphs of whole-tensor operations: loops over index spaces, fused and turned into kernels."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`explain`, which needs torch, when somebody asks for it."""
    if name == "explain":
        return import_module("tessera.graph.torch_explain").explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
