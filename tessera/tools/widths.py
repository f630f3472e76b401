"""Implements the command `widths`: how wide each load and store of a program's kernels is (docs/debugging.md).

The program runs, and each kernel that it compiles is compiled again, by the stages up to GPU IR or, for a CPU, to
LLVM IR.
"""

from __future__ import annotations

import re
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
    """Within the context, print the widths of each kernel that is compiled, for `target` or for its own."""

    def made(backend: Backend, options: Options, stage: Stage) -> Stage:
        return _telling(backend, options, target, stage)

    with watched("widths", made):
        yield


def _telling(backend: Backend, options: Options, target: GPUTarget | None, stage: Stage) -> Stage:
    asked = backend if target is None else make_backend(target)

    def tell(module: Module, metadata: dict[str, str]) -> object:
        given = asked.parse_options(given_options(backend, options))
        copied = module.clone()
        if isinstance(asked, NvidiaBackend):
            copied.attrs |= asked.attributes(given)
        print(f"{metadata['name']} for {asked.target}:")
        for width in widths(copied, asked, given):
            print(width)
        return stage(module, metadata)

    return tell


def command(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`widths [--target sm_90] SCRIPT [ARGS...] | -m MODULE [ARGS...]`; `program` runs it in this process."""
    target = None
    if args[:1] == ["--target"]:
        found = re.fullmatch(r"sm_(\d+)", args[1] if len(args) > 1 else "")
        if found is None:
            return 2
        target, args = GPUTarget("cuda", int(found[1]), 32), args[2:]
    with reported(target):
        return program(args)
