"""Runs a script with another value of a constant: `... tools.fit.with_value MODULE NAME VALUE SCRIPT [ARGS...]`."""

from __future__ import annotations

import ast
import pkgutil
import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def set_everywhere(module: str, name: str, value: float) -> list[str]:
    """Give the constant its value in the module and in all modules of tessera's compiler that import it by name.

    What was computed from it when a module was loaded keeps its value: such a constant cannot be fitted so.
    """
    home = import_module(module)
    old = getattr(home, name)
    for package in ("passes", "backends", "layout", "analysis"):
        top = import_module(f"tessera.{package}")
        for found in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
            import_module(found.name)
    changed = [m for m in list(sys.modules.values()) if m is home or _imports(m, module, name)]
    for m in changed:
        assert getattr(m, name) == old, m.__name__
        setattr(m, name, value)
    return sorted(m.__name__ for m in changed)


def _imports(m: ModuleType, module: str, name: str) -> bool:
    """Whether a module has `from module import name`."""
    file = getattr(m, "__file__", None) or ""
    if not m.__name__.startswith("tessera.") or not hasattr(m, name) or not file.endswith(".py"):
        return False
    return any(
        isinstance(x, ast.ImportFrom)
        and x.module == module
        and any(a.name == name for a in x.names)
        for x in ast.parse(Path(file).read_text("utf-8")).body
    )


if __name__ == "__main__":
    module, name, value, script, *arguments = sys.argv[1:]
    print(
        f"{name} = {value} in {', '.join(set_everywhere(module, name, ast.literal_eval(value)))}",
        file=sys.stderr,
    )
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
