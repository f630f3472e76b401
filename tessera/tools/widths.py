"""Implements the command `widths`: how wide each load and store of a program's kernels is (docs/debugging.md).

The program runs, and each kernel that it compiles is compiled again, by the stages up to GPU IR or, for a CPU, to
LLVM IR.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tessera.backends.compiler import Backend, GPUTarget, Options, Stage
from tessera.backends.nvidia.backend import NvidiaBackend
from tessera.compiler.compile import make_backend
from tessera.explain.widths import widths
from tessera.ir import Module
from tessera.tools.replay.inputs import given_options, watched


@contextmanager
def reported(target: GPUTarget | None = None) -> Generator[None]:
    """Print at the end the widths of each kernel that is compiled within the context, for `target` or for its own."""
    told: list[str] = []

    def made(backend: Backend, options: Options, stage: Stage) -> Stage:
        return _telling(backend, options, target, stage, told)

    try:
        with watched("widths", made):
            yield
    finally:
        print("".join(f"{line}\n" for line in told), end="")


def _telling(
    backend: Backend, options: Options, target: GPUTarget | None, stage: Stage, told: list[str]
) -> Stage:
    asked = backend if target is None else make_backend(target)

    def tell(module: Module, metadata: dict[str, str]) -> object:
        given = asked.parse_options(given_options(backend, options))
        copied = module.clone()
        if isinstance(asked, NvidiaBackend):
            copied.attrs |= asked.attributes(given)
        told.append(f"{metadata['name']} for {asked.target}:")
        told.extend(map(str, widths(copied, asked, given)))
        return stage(module, metadata)

    return tell


def command(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`widths [--target sm_90] SCRIPT [ARGS...] | -m MODULE [ARGS...]`; `program` runs it in this process."""
    target = None
    if args[:1] == ["--target"]:
        found = re.fullmatch(r"sm_(\d+)", args[1] if len(args) > 1 else "")
        if found is None:
            print(
                f"tessera widths: --target must be like sm_90, got {args[1] if args[1:] else 'nothing'}",
                file=sys.stderr,
            )
            return 2
        target, args = GPUTarget("cuda", int(found[1]), 32), args[2:]
    with reported(target):
        return program(args)
