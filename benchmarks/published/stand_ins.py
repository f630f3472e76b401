"""Imports of libraries that ask for a GPU or for packages that are not here: kernels are text, and need neither.

Modules that cannot be found are stand-ins whose attributes are stand-ins, a module that fails keeps what it had defined
until then, and while a library is imported torch says that it has an H200. Kernels are then taken from the modules; no
function of the library runs.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch

OURS = {"triton", "tessera", "torch", "numpy", "published"}
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=141 << 30, warp_size=32,
    gcnArchName="", shared_memory_per_multiprocessor=233472, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, L2_cache_size=60 << 20,
)  # fmt: skip
ANSWERS: dict[str, Any] = {
    "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": PROPERTIES,
    "get_device_capability": (9, 0), "get_device_name": "NVIDIA H200", "is_initialized": True,
}  # fmt: skip


class Absent(MagicMock):
    """What a module that is not here would have given: it has every attribute but those that mark kernels."""

    def __getattr__(self, name: str) -> Any:
        if name in ("fn", "__qualname__", "__name__", "__triton_builtin__"):
            raise AttributeError(name)
        return super().__getattr__(name)


class StandIn(ModuleType):
    """A module that has every name."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return _stand_in(self, name)


def _stand_in(module: ModuleType, name: str) -> Any:
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    made: Any = type(name, (Exception,), {}) if name.endswith("Error") else Absent(name=name)
    setattr(module, name, made)
    return made


class Lenient(importlib.machinery.SourceFileLoader):
    """Runs a module as far as it goes."""

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException:  # some modules end the process
            module.__getattr__ = partial(_stand_in, module)


class LibraryFinder(importlib.abc.MetaPathFinder):
    """The first finder, for the modules of one library."""

    def __init__(self, library: str) -> None:
        self.library = library

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != self.library:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is not None and type(found.loader) is importlib.machinery.SourceFileLoader:
            found.loader = Lenient(fullname, found.loader.path)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: what no other has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root = fullname.split(".")[0]
        if root in OURS or root in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def everything_there(library: str) -> Iterator[None]:
    """Within it any package can be imported, `library` as far as it goes, and torch says that it has a GPU."""
    first, last = LibraryFinder(library), Finder()
    with ExitStack() as stack:
        for name, answer in ANSWERS.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, _a=answer, **__: _a))
        sys.meta_path.insert(0, first)
        sys.meta_path.append(last)
        stack.callback(sys.meta_path.remove, first)
        stack.callback(sys.meta_path.remove, last)
        yield
