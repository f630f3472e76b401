"""`opt` reads IR, runs passes by name on it and prints the result, as the tools of that name do for LLVM and MLIR.

    python -m tessera opt --passes=licm,cse kernel.tir
    python -m tessera opt --passes=coalesce,assign-layouts --target=sm_90 kernel.gir
    python -m tessera opt --passes=graph-canonicalize,graph-fuse model.gph

Several modules in one file are separated by lines `// -----`.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

import tessera.graph.passes  # registers the operations of graphs, too
import tessera.layout  # registers how layouts are read
from tessera.backends.cpu.backend import cpu_pipeline
from tessera.backends.nvidia.backend import enabled_facts
from tessera.backends.nvidia.target import facts_for
from tessera.compiler import source
from tessera.config.optimizations import names_in
from tessera.errors import TesseraError
from tessera.ir import Module, Pass, PassManager, parse_module, print_module
from tessera.ir.applications import Session
from tessera.ir.passes import parse_pipeline
from tessera.tools.programs import reason_of

REGISTERED = (
    tessera.layout,
    cpu_pipeline,
    source,
    tessera.graph.passes,
)  # imported for the passes that they register
SEPARATOR = "// -----\n"


def run_passes(text: str, passes: list[Pass], target: str = "", disable: str = "") -> Module:
    """Return the module `text` after `passes`; the verifier runs after each of them.

    `target` ("sm_90") gives passes the facts of a GPU; `disable` has names of optimisations to leave out.
    Raises ValueError for a malformed target, and whatever error the parser and the passes raise.

    >>> text = "module {} {\\n func {name='f'} (%x: i32) {\\n %y: i32 = neg %x\\n return []\\n}\\n}"
    >>> [op.opcode for op in run_passes(text, parse_pipeline("canonicalize")).walk()]  # `neg` has no user
    ['func', 'return']
    """
    module = parse_module(text)
    with Session("opt", disabled=names_in(disable)):
        bound = [_with_facts(p, target) for p in passes]
        return PassManager(bound, verify=True).run(module)


def _with_facts(p: Pass, target: str) -> Pass:
    if "facts" not in inspect.signature(p.fn).parameters:
        return p
    kind, _, capability = target.partition("_")
    if kind != "sm" or not capability.isdigit():
        raise ValueError(f"pass {p.name!r} needs a GPU: --target=sm_90, not {target!r}")
    return p.bind(facts=enabled_facts(facts_for(int(capability))))


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("tessera opt", description="run passes on IR and print it")
    parser.add_argument("file", help="IR as text (.tir, .gir, .gph); - reads the standard input")
    parser.add_argument("--passes", default="", help='names and options, "a,b{option=1}"')
    parser.add_argument("--target", default="", help="the GPU whose facts passes use, e.g. sm_90")
    parser.add_argument("--disable", default="", metavar="NAMES", help="optimisations to leave out")
    return parser


def opt(args: list[str]) -> int:
    """Run the command; return 1 if the text, the pipeline or a pass reports an error."""
    given = arguments().parse_args(args)
    try:
        text = sys.stdin.read() if given.file == "-" else Path(given.file).read_text("utf-8")
        passes = parse_pipeline(given.passes)
        results = [
            print_module(run_passes(part, passes, given.target, given.disable))
            for part in text.split(SEPARATOR)
        ]
    except (OSError, TesseraError, ValueError, KeyError) as error:
        print(f"tessera opt: {reason_of(error)}", file=sys.stderr)
        return 1
    print(f"\n{SEPARATOR}".join(results))
    return 0
