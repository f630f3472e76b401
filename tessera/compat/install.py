"""Puts the `triton` package of tessera first on the path of this process and of its children."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType

from tessera.compat.absent import HOLLOW, absent, explain
from tessera.compiler.kernel import INTERFACE_VERSION
from tessera.errors import TritonAlreadyImported

PATH = Path(__file__).resolve().parent / "path"
ROOT = PATH.parents[2]  # the folder that holds the package tessera
TRITON_VERSION = INTERFACE_VERSION


def is_ours(module: ModuleType) -> bool:
    """Whether a module named `triton` is the one of this package."""
    spec = module.__spec__
    origin = None if spec is None else spec.origin
    return origin is not None and Path(origin).is_relative_to(PATH)


class Hollow(Loader):
    """Loads a module without names: each name fails with its reason when it is looked up."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = absent(module.__name__)


def _is_from_import(frame: FrameType | None) -> bool:
    """Whether Python's import machinery, which `frame` is in, looks up a name of `from module import name`."""
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


class Reasons(MetaPathFinder):
    """Consulted after all other finders: a missing module of our `triton` fails with the reason."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        module = sys.modules.get(parent)
        if parent.partition(".")[0] != "triton" or module is None or not is_ours(module):
            return None
        finding = inspect.currentframe()
        for _ in range(2):
            finding = None if finding is None else finding.f_back
        if finding is not None and finding.f_globals.get("__name__") == "importlib.util":
            return (
                None  # importlib.util.find_spec only wants to know whether there is such a module
            )
        if fullname in HOLLOW:
            return ModuleSpec(fullname, Hollow(), origin=str(PATH), is_package=True)
        if _is_from_import(
            finding
        ):  # Python ignores that a module is not found and says nothing of the reason
            raise ImportError(explain(parent, name), name=parent)
        raise ModuleNotFoundError(explain(parent, name), name=fullname)


def install() -> None:
    """Make `import triton` find tessera here and in child processes; may be repeated.

    Raises TritonAlreadyImported if another Triton has been imported.
    """
    present = sys.modules.get("triton")
    if present is not None and not is_ours(present):
        raise TritonAlreadyImported(where=getattr(present, "__file__", "an unknown place"))
    if not any(isinstance(finder, Reasons) for finder in sys.meta_path):
        sys.meta_path.append(Reasons())
    mine = str(PATH)
    if not sys.path or sys.path[0] != mine:
        sys.path[:] = [mine, *(p for p in sys.path if p != mine)]
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    rest = [p for p in inherited if p not in (mine, str(ROOT))]
    # Last, so that a child finds its own modules before anything next to tessera.
    os.environ["PYTHONPATH"] = os.pathsep.join([mine, *rest, str(ROOT)])
