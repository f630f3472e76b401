"""Which operators of torch's op_db have kernels of ours, beside Inductor. Nothing is compiled: plans are counted.

    python -m tests.graph.op_db_kernels [--part 20 --which 3] [--dtypes float32,int64] [--only NAME] [--out FILE]
    python -m tests.graph.op_db_kernels --table FILE ...

A case is an operator, a dtype and a direction, with the operator's first sample. Of the graphs that torch traces of it,
our plan says which steps are kernels and which externs, and Inductor's wrapper which C++ kernels it would compile and
which functions of ATen's it calls; eager then runs them. A case in which Inductor has a kernel, and we none, is
`missing`; one in which we have kernels and more externs than Inductor is `more externs`; Dynamo breaks the graph `more
often` where there are more breaks under our backend than under Inductor. `--table` adds up what `--out` wrote.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering

from tessera.backends.compiler import GPUTarget
from tessera.graph.calls.executable import machine_of
from tessera.graph.passes import optimize
from tessera.graph.planning.plan import Extern, Interpret, Launch
from tessera.graph.planning.planner import Planner
from tessera.graph.torch.decompose import decompositions
from tessera.graph.torch.eager import run_by_eager
from tessera.graph.torch.importing import import_graph
from tessera.graph.torch.options import Options
from tessera.graph.torch.types import NotLowered
from tessera.ops import FuncOp
from tests.graph.op_db_sweep import DTYPES, cases, show
from tests.graph.torch_kit import copied, gradients

KERNEL = re.compile(r"^\s+(?:cpp_fused|cpp_)\w*\(", re.MULTILINE)
EXTERN = re.compile(r"(?:torch\.ops\.|\baten\.|extern_kernels\.)[\w.]+(?=\()")


@dataclass
class Count:
    """Of the graphs of a case: `kernels`, `externs` by name, with the reason; how often Dynamo broke the graph; what
    went wrong."""

    kernels: int = 0
    externs: list[tuple[str, str]] = field(default_factory=list)
    breaks: int = 0
    error: str = ""


class Counted(Exception):
    """Inductor has written its wrapper."""


def ours(count: Count) -> Any:
    """A backend of Dynamo that plans as tessera does, and runs graphs by eager."""

    def compiled(graph: torch.fx.GraphModule, _: Any) -> Any:
        try:
            imported = import_graph(graph, Options(), "forward", set())
        except NotLowered as why:
            count.externs.append(("the whole graph", str(why)))
            return run_by_eager(graph)
        optimize(imported.module)
        machine = machine_of(GPUTarget("cpu", "native", 1))
        (function,) = imported.module.functions
        assert isinstance(function, FuncOp)
        steps = Planner(function, machine).run().steps
        reasons = dict(imported.externs)
        for step in steps:
            if isinstance(step, Launch):
                count.kernels += 1
            elif isinstance(step, Interpret):
                count.externs.append((step.op.opcode, step.reason))
            elif isinstance(step, Extern):
                count.externs.append((step.op.target, reasons.get(step.op.target, "")))
        return run_by_eager(graph)

    return aot_autograd(
        fw_compiler=compiled, decompositions=decompositions(), keep_inference_input_mutations=True,
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip


def inductors(count: Count) -> Any:
    """A backend of Dynamo that lowers as Inductor does, and runs graphs by eager."""

    def written(lowering: GraphLowering) -> Any:
        text = lowering.codegen()[0].value
        called = text[text.find("def call(") :]
        count.kernels += len(KERNEL.findall(called))
        count.externs += [(name, "") for name in EXTERN.findall(called)]
        raise Counted

    def inner(graph: torch.fx.GraphModule, inputs: Any, **settings: Any) -> Any:
        run = make_boxed_func(copy.deepcopy(graph).forward)
        try:
            with mock.patch.object(GraphLowering, "compile_to_module", written):
                compile_fx.compile_fx_inner(graph, inputs, **settings)
        except Exception as error:
            if "Counted" not in f"{type(error).__name__} {error}":
                count.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return run

    return lambda graph, inputs: compile_fx.compile_fx(graph, inputs, inner_compile=inner)


def counted(make: Any, op: Any, sample: Any, backward: bool) -> Count:
    """What a backend makes of an operator."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    count = Count()
    torch._dynamo.reset()
    counters.clear()
    run = torch.compile(call, backend=make(count), dynamic=False)
    args, kwargs = copied(((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    try:
        gradients(run, args, kwargs) if backward else run(*args, **kwargs)
    except Exception as error:
        count.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    count.breaks = sum(counters["graph_break"].values())
    return count


def judged(own: Count, other: Count) -> str:
    if not other.kernels:
        return "no kernel" if not own.kernels else "ours alone"
    if not own.kernels:
        return "missing"
    return "more externs" if len(own.externs) > len(other.externs) else "kernels"


RESULTS = ("kernels", "ours alone", "more externs", "missing", "no kernel", "more breaks", "error")


def table(files: list[str]) -> None:
    rows: dict[str, Counter[str]] = {}
    for name in files:
        for line in Path(name).read_text().splitlines():
            case = json.loads(line)
            count = rows.setdefault(case["case"].split()[1], Counter())
            count[case["result"]] += 1
            count["more breaks"] += case["own"]["breaks"] > case["inductor"]["breaks"]
            count["error"] += bool(case["own"]["error"]) and not case["inductor"]["error"]
    show(rows, RESULTS)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--which", type=int, default=0)
    parser.add_argument("--only")
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--out")
    parser.add_argument("--table", nargs="+", default=[])
    parser.set_defaults(device="cpu", samples=1, layouts="given")
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return 0
    warnings.simplefilter("ignore")
    inductor_config.fx_graph_cache = functorch_config.enable_autograd_cache = False
    inductor_config.cpp.vec_isa_ok = True  # nothing is compiled to find that out
    out = open(options.out, "a") if options.out else None  # noqa: SIM115
    total: Counter[str] = Counter()
    begin = time.perf_counter()
    for case in cases(options):
        given = (case.op, case.sample, case.backward)
        own, other = counted(ours, *given), counted(inductors, *given)
        result = judged(own, other)
        total[result] += 1
        broken = own.breaks > other.breaks
        if result in ("missing", "more externs") or broken or (own.error and not other.error):
            names = [f"{name} ({why})" for name, why in own.externs]
            print(
                f"{result:12} {case.name}: {', '.join(names)} beside {other} {own.error}",
                flush=True,
            )
        if out:
            row = {
                "case": case.name,
                "result": result,
                "own": asdict(own),
                "inductor": asdict(other),
            }
            out.write(json.dumps(row) + "\n")
            out.flush()
    print(dict(total), f"{time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
