"""Every name of `triton` that the installed torch imports is there, or is on a list with the reason why not."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from kit import needs_torch, python

# Names that torch can do without: each is imported inside `try`, or for another vendor's hardware.
ABSENT = {
    "triton.backends.compiler.AttrsDescriptor": "removed in Triton 3.3: tells torch to pass attributes as dicts",
    "triton.compiler.compiler.AttrsDescriptor": "removed in Triton 3.3: tells torch to pass attributes as dicts",
    "triton.fb": "of one company's build",
    "triton.fb.build": "of one company's build",
    "triton.fb.re_build_helper": "of one company's build",
    "triton.language.extra.cuda.experimental_device_tensormap_create1d": "superseded by tensor descriptors",
    "triton.language.extra.cuda.experimental_device_tensormap_create2d": "superseded by tensor descriptors",
    "triton.language.extra.tlx": "an extension of one vendor",
    "triton.runtime.cache._base64": "the older encoding; torch asks for _base32 first",
    "triton.runtime.errors.IntelGPUError": "no Intel back end",
    "triton.runtime.jit.create_specialize_impl": "the older of two ways; native_specialize_impl is there",
    "triton.runtime.jit.specialize_impl": "the oldest of three ways; native_specialize_impl is there",
    "triton.tools.experimental_descriptor": "superseded by triton.tools.tensor_descriptor",
}


def names_in(source: str) -> Iterator[str]:
    """`module` and `module.name` of each import of triton."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "triton")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module.split(".")[0] == "triton":
                yield node.module
                yield from (f"{node.module}.{a.name}" for a in node.names)


def imported_by_torch() -> set[str]:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    found: set[str] = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        text = path.read_text(errors="ignore")
        if "triton" in text:
            found.update(names_in(text))
    return found


@needs_torch
def test_names_that_torch_imports(tmp_path: Path):
    names = sorted(imported_by_torch())
    assert len(names) > 40
    code = f"""
import importlib, tessera.compat
for name in {names}:
    try:
        importlib.import_module(name)
    except ImportError:
        module, _, last = name.rpartition(".")
        try:
            getattr(importlib.import_module(module), last)
        except (ImportError, AttributeError):
            print(name)
"""
    missing = set(python(tmp_path, "-c", code).split())
    unexplained = {n for n in missing if not any(n == a or n.startswith(a + ".") for a in ABSENT)}
    assert not unexplained


def test_imports_are_found():
    text = "import triton.a\nfrom triton.b import c, d\nfrom tritonish import e\nfrom .triton import f\n"
    assert set(names_in(text)) == {"triton.a", "triton.b", "triton.b.c", "triton.b.d"}
