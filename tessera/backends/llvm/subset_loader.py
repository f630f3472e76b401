"""Loads functions of the native subset (`subset`) as machine code of this process.

If objects are kept, as the disk cache does, only the first process compiles. Others import neither the compiler nor
the modules of the functions, which is why functions are given by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from tessera.backends.llvm.binding import LoadedObject, host, link_object, optimise

PASSES = "inline,sroa,instcombine,simplifycfg"
Make: TypeAlias = Callable[[], bytes]
_keepers: list[Callable[[str, Make], bytes]] = []


def keep_objects_by(keeper: Callable[[str, Make], bytes]) -> None:
    """Set `keeper(name, make)`, which returns the object `name`, made now or by an earlier process of this version."""
    _keepers[:] = [keeper]


def load_functions(name: str, functions: Mapping[str, str], passes: str = PASSES) -> LoadedObject:
    """Compile exported functions (name → module) for this machine with all they call, and load them. `passes`: see
    `optimise`."""
    target = replace(host("native"), opt=1)

    def make() -> bytes:
        compiler = importlib.import_module("tessera.backends.llvm.subset_compiler")
        found = [getattr(importlib.import_module(at), f) for f, at in functions.items()]
        return optimise(compiler.compile_functions(*found), target, passes).to_object()

    image = _keepers[0](f"{name}/{target.key}", make) if _keepers else make()
    return link_object(image, functions)
