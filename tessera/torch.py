"""Registers the Dynamo backend `tessera` when it is imported: the door to PyTorch.

    import tessera.torch
    fast = torch.compile(model, backend="tessera")

Where tessera is installed, torch finds the backend by its entry point and the import is not needed.
docs/torch-compile.md tells what is compiled, the modes and the options.
"""

# pyright: basic
# torch is not in every environment, and gives most of its values no type.
from __future__ import annotations

from tessera.graph.torch_version import check_version

check_version()

from torch._dynamo import register_backend, trace_rules  # noqa: E402
from torch._dynamo.backends import registry  # noqa: E402

from tessera.graph.torch_backend import backend  # noqa: E402

__all__ = ["backend"]

# Dynamo registers what the entry point names itself, after it has imported this module.
if "tessera" not in registry._BACKENDS:
    register_backend(backend, name="tessera")

# A kernel that a compiled function launches breaks the graph there: Dynamo does not trace how it is compiled.
for _part in (
    "runtime",
    "compiler",
    "frontend",
    "passes",
    "backends",
    "ir",
    "ops",
    "analysis",
    "layout",
    "interp",
):
    trace_rules.add(f"tessera.{_part}")
