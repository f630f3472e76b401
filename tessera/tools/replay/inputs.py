"""Records the compile inputs of any program: the tile IR of each kernel that it compiles, with target and options."""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tessera.backends.compiler import Backend, Options, Stage
from tessera.config import knobs
from tessera.ir import Module, print_module


@contextmanager
def recording(folder: Path) -> Generator[None]:
    """Within the context, write each kernel that this process or a fork of it compiles to `folder`:
    NAME-HASH.tir and NAME-HASH.json. Equal inputs are written once. The disk cache is not used."""
    folder.mkdir(parents=True, exist_ok=True)

    def made(backend: Backend, options: Options, stage: Stage) -> Stage:
        known = backend.name in ("cuda", "cpu")
        return _writing(folder, backend, options, stage) if known else stage

    with watched("recorded", made):
        yield


@contextmanager
def watched(name: str, made: Callable[[Backend, Options, Stage], Stage]) -> Generator[None]:
    """Within the context, replace the first stage of each compilation by the result of `made`; the disk cache is not
    used. `name` distinguishes what is compiled meanwhile."""

    def inspect(
        backend: Backend | None = None, stages: dict[str, Stage] | None = None,
        options: Options | None = None, *rest: object,
    ) -> tuple[str, str] | None:  # fmt: skip
        if backend is None or stages is None or options is None:
            return (name, name)
        if "tir" in stages:
            stages["tir"] = made(backend, options, stages["tir"])
        return None

    with knobs.runtime.scope(), knobs.compilation.scope():
        knobs.runtime.add_stages_inspection_hook = inspect
        knobs.compilation.always_compile = True
        yield


def _writing(folder: Path, backend: Backend, options: Options, stage: Stage) -> Stage:
    def write(module: Module, metadata: dict[str, Any]) -> Any:
        facts = {"backend": backend.name, "options": given_options(backend, options)}
        text, about = print_module(module), json.dumps(facts, sort_keys=True)
        digest = hashlib.sha256((text + about).encode()).hexdigest()[:12]
        path = folder / f"{metadata['name'][:80]}-{digest}.tir"
        path.write_text(text, encoding="utf-8")
        path.with_suffix(".json").write_text(about, encoding="utf-8")
        return stage(module, metadata)

    return write


def given_options(backend: Backend, options: Options) -> dict[str, Any]:
    """Return the options that differ from the target's defaults."""
    defaults = asdict(backend.parse_options({}))
    return {k: v for k, v in asdict(options).items() if v != defaults[k] and k != "target"}


def record_program(folder: Path, program: list[str]) -> None:
    """Run a Python program (`FILE ARGS` or `-m MODULE ARGS`) and record what it compiles."""
    with recording(folder):
        if program[0] == "-m":
            sys.argv = program[1:]
            sys.path.insert(0, "")
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            sys.path.insert(0, str(Path(program[0]).resolve().parent))
            runpy.run_path(program[0], run_name="__main__")
