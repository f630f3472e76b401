"""Registers the Dynamo backend `tessera` when it is imported.

    import tessera.torch
    fast = torch.compile(model, backend="tessera")

Where tessera is installed, torch finds the backend by its entry point and the import is not needed.
docs/torch-compile.md says what is compiled, and describes the modes and the options.
"""

# pyright: basic
# torch is not installed everywhere, and most of its values are untyped.
from __future__ import annotations

from tessera.graph.torch.version import check_version

check_version()

from torch._dynamo import register_backend, trace_rules  # noqa: E402
from torch._dynamo.backends import registry  # noqa: E402

from tessera.graph.torch.backend import backend  # noqa: E402

__all__ = ["backend"]

# Dynamo registers the backend of the entry point itself, after it has imported this module.
if "tessera" not in registry._BACKENDS:
    register_backend(backend, name="tessera")

# A kernel launched by a compiled function breaks the graph there: Dynamo does not trace its compilation.
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
