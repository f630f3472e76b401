"""Compiles every kernel that a source tree offers, and writes the products into one zip file.

    python -P recorder.py TREE OUT.zip [--targets sm_90,avx2] [--jobs 2] [--only TEXT] [--inputs DIR] [--no-binary]

This file runs on its own, with PYTHONPATH=TREE, since TREE may be older than this tool. Therefore it uses nothing of
tessera but `compile`, `ASTSource`, `GPUTarget` and `knobs`. The kernels come from all Python files of TREE's examples,
benchmarks and tests that have a function `specimens()`, and from recorded tile IR (DIR/*.tir beside *.json).
"""

from __future__ import annotations

import argparse
import ast
import glob
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera import knobs
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, compile

TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_90": ("cuda", 90, 32),
    "sm_80": ("cuda", 80, 32),
    "generic": ("cpu", "generic", 1),
    "avx2": ("cpu", "avx2", 1),
    "avx512": ("cpu", "avx512", 1),
    "amx": ("cpu", "amx", 1),
}
FOLDERS = ("examples", "benchmarks", "tests")
ON_PATH = (
    "",
    "examples",
    "benchmarks",
    "tests",
    "tests/unit",
)  # where these folders' files import from
BINARIES = ("cubin", "object")  # stages that quick recordings omit
NUMBERS = ("registers", "spills", "shared", "warps", "scratch_bytes")
OFFERS = "def specimens("


@dataclass
class Input:
    """One kernel to compile: a source, or the path of tile IR, with its options and its targets."""

    key: str
    source: Any
    options: dict[str, Any]
    capabilities: tuple[int, ...] | None = None
    backend: str = ""  # the only one, if any

    def suits(self, target: str) -> bool:
        backend, arch, _ = TARGETS[target]
        if self.backend and backend != self.backend:
            return False
        return backend != "cuda" or self.capabilities is None or arch in self.capabilities


def source_of(specimen: Any) -> ASTSource:
    """Return the specimen's `source`, or that of a launch with aligned arrays and sizes divisible by 16."""
    if hasattr(specimen, "source"):
        return specimen.source
    names = specimen.kernel.arg_names
    given = specimen.constants
    signature = {n: "constexpr" if n in given else specimen.signature[n] for n in names}
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or signature[name] == "i32"
    }
    return ASTSource(specimen.kernel, signature, given, attrs)


def load(path: Path) -> Any:
    """Return the module of a file, whose name need not be a Python name."""
    name = "replay_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def offering_files(tree: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if OFFERS in text and any(
                isinstance(x, ast.FunctionDef) and x.name == "specimens"
                for x in ast.parse(text).body
            ):
                yield path


def offered(tree: Path, index: dict[str, Any]) -> Iterator[Input]:
    """Yield the inputs of all files with `specimens()`. A file that cannot be loaded gets an entry with its error."""
    for path in offering_files(tree):
        folder = path.relative_to(tree).parts[0]
        count: Counter[str] = Counter()
        try:
            specimens = list(load(path).specimens())
        except Exception as error:
            index[f"{folder}/{path.stem}"] = {"error": told(error)}
            continue
        for specimen in specimens:
            name = getattr(specimen, "name", "") or specimen.kernel.__name__
            key = f"{folder}/{path.stem}/{name}" + (f"#{count[name]}" if count[name] else "")
            count[name] += 1
            capabilities = getattr(specimen, "capabilities", None)
            yield Input(key, source_of(specimen), dict(specimen.options), capabilities)


def recorded(folder: str) -> Iterator[Input]:
    """Yield tile IR that `replay record` wrote."""
    for path in sorted(glob.glob(os.path.join(folder, "*.tir"))):
        facts = json.loads(Path(path).with_suffix(".json").read_text(encoding="utf-8"))
        key = f"recorded/{Path(path).stem}"
        yield Input(key, path, facts["options"], backend=facts["backend"])


def told(error: BaseException) -> str:
    """Return the class and the first line of an error: the rest names files."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def stop_before_binary(*about: Any) -> tuple[str, str] | None:
    """The hook of `knobs.runtime.add_stages_inspection_hook`: removes the last stage."""
    if not about:
        return ("no binary", "no binary")
    for name in BINARIES:
        about[1].pop(name, None)
    return None


JOBS: list[
    tuple[Input, str]
] = []  # what the forked processes share: an input and the name of a target


def compiled(job: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return (key, facts, product by level) of one kernel for one target."""
    made, target = JOBS[job]
    key = f"{made.key}@{target}"
    start = sum(os.times()[:4])
    try:
        kernel = compile(made.source, target=GPUTarget(*TARGETS[target]), options=made.options)
    except Exception as error:
        return key, {"error": told(error)}, {}
    facts: dict[str, Any] = {"seconds": sum(os.times()[:4]) - start}  # including ptxas's
    metadata = kernel.metadata._asdict()
    facts |= {name: metadata[name] for name in NUMBERS if metadata.get(name) is not None}
    left_out = {"hash", "target", "timings", "remarks", *NUMBERS}
    facts["metadata"] = {k: repr(v) for k, v in metadata.items() if k not in left_out}
    return key, facts, {k: v for k, v in kernel.asm.items() if k != "source"}


def write(jobs: int, index: dict[str, Any], out: Path) -> None:
    """Compile all JOBS and write `out`: index.json and KEY@TARGET/LEVEL for each product."""
    context = multiprocessing.get_context("fork")
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ProcessPoolExecutor(jobs, context) as pool,
    ):
        for key, facts, products in pool.map(compiled, range(len(JOBS))):
            index[key] = facts
            facts["levels"] = list(products)
            for level, product in products.items():
                archive.writestr(f"{key}/{level}", product)
        archive.writestr("index.json", json.dumps(index))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a kernel's key")
    parser.add_argument("--inputs", default="", help="folder of recorded tile IR")
    parser.add_argument("--no-binary", action="store_true", help="stop before machine code")
    given = parser.parse_args()
    tree = given.tree.resolve()
    loaded = Path(str(knobs.__file__)).resolve()
    if tree not in loaded.parents:
        sys.exit(f"this Python imports {loaded}, which is not of {tree}")
    sys.path[:0] = [str(tree / folder) for folder in ON_PATH]
    warnings.simplefilter("ignore")
    if given.no_binary:
        knobs.runtime.add_stages_inspection_hook = stop_before_binary
    index: dict[str, Any] = {}
    inputs = [*offered(tree, index), *(recorded(given.inputs) if given.inputs else ())]
    for name in given.targets.split(","):
        JOBS.extend((x, name) for x in inputs if given.only in x.key and x.suits(name))
    write(given.jobs, index, given.out)


if __name__ == "__main__":
    main()
