"""The examples' kernels as modules, compiled by tessera or, from the same file, by Triton."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("TESSERA_STRICT", "1")  # what is measured has all optimisations
ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "examples", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


PARTS = ("", ".language", ".tools", ".tools.tensor_descriptor")  # modules that examples import


def example(number: str, compiler: str = "tessera") -> Any:
    """Example `number` ("03") with `import tessera` meaning `compiler` ("tessera" or "triton")."""
    (path,) = (ROOT / "examples").glob(f"{number}-*.py")
    return load(path, compiler)


def specimens(number: str, compiler: str = "tessera") -> list[Any]:
    """How the kernels of an example are compiled, with those that `compiler` is to compile."""
    common = importlib.import_module("common")
    (path,) = (ROOT / "examples/checks").glob(f"{number}-*.py")
    before = dict(common.loaded)
    common.loaded[path.stem] = example(number, compiler)
    try:
        return common.load(path, f"{compiler}_checks_{number}").specimens()
    finally:
        common.loaded.clear()
        common.loaded.update(before)


def load(path: Path, compiler: str = "tessera") -> Any:
    """The module of a file, with `import tessera` meaning `compiler` ("tessera" or "triton")."""
    name = f"{compiler}_{path.stem.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    importlib.import_module("common")
    kept = {f"tessera{part}": sys.modules.get(f"tessera{part}") for part in PARTS}
    try:
        if compiler != "tessera":
            for part in PARTS:
                sys.modules[f"tessera{part}"] = importlib.import_module(compiler + part)
        spec.loader.exec_module(module)
    finally:
        for key, value in kept.items():
            restore(key, value)
    return module


def kernels(compiler: str = "tessera") -> Any:
    """The kernels of `kernels.py`, as a module."""
    return load(Path(__file__).with_name("kernels.py"), compiler)


def restore(key: str, module: ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(key, None)
    else:
        sys.modules[key] = module
