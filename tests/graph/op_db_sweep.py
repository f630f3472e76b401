"""torch's op_db under backend="tessera", beside eager: values, strides, gradients. Prints a table.

    python -m tests.graph.op_db_sweep [--part 20] [--dtypes float32,int64] [--kernels interpreted] [--out FILE]
    python -m tests.graph.op_db_sweep --samples 5 --layouts given,reversed,sliced,expanded,empty
    python -m tests.graph.op_db_sweep --table FILE ...

A case is an operator, a dtype, a sample, a layout of its tensors (`tests/graph/layouts.py`) and a direction. Values,
strides, and which inputs and results share memory are compared. Of an
operator's samples, `--samples` takes so many at equal distances. Results: `equal`; `skipped` (eager or torch's tracing
does not take it, or its result is not determined); `as traced` (other numbers or strides than eager's, but those of
torch's own tracing, which backend="aot_eager" gives, too; strides also with the decompositions that we ask for, and
those of dimensions of one element may be any); `as exact` (other numbers than eager's, but no further from those in
float64 than twice eager's); `differs`; `error`. `--table` prints a row for each type of what `--out` wrote. Of all
cases `kernels` counts those in which a kernel of ours ran, `numpy` those in which NumPy computed a loop that no kernel
was made for, `inductor has more` those with an extern for which Inductor would generate a kernel, `broken` those in
which Dynamo broke the graph because the backend raised an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_map

from tessera.graph.calls.executable import Executable
from tessera.graph.planning.plan import Interpret, Launch
from tessera.graph.torch.decompose import decompositions
from tests.graph.layouts import LAYOUTS
from tests.graph.torch_kit import copied, detached, difference, gradients, recording, tensors

with warnings.catch_warnings():  # of numba, where that is
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import SampleInput

DTYPES = "float32,float64,float16,bfloat16,int64,int32,uint8,bool"
INF = float("inf")
RESULTS = ("equal", "as traced", "as exact", "differs", "error", "skipped")
# Operators that give places of numbers: which of equal ones comes first is not determined.
PLACES = {"kthvalue", "topk", "median", "nanmedian", "mode", "sort"}
# Results that are whatever memory held.
UNDETERMINED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "nn.functional.dropout",
    "argsort",  # which of equal elements comes first
}  # fmt: skip


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def chosen(part: int, which: int, only: str | None) -> list[Any]:
    """Operators whose name's hash is `which` modulo `part`."""
    return [
        op for op in op_db
        if not op.name.startswith("jiterator") and (
            full_name(op) == only if only else
            int(hashlib.sha256(full_name(op).encode()).hexdigest(), 16) % part == which
        )
    ]  # fmt: skip


@dataclass
class Case:
    op: Any
    dtype: torch.dtype
    backward: bool
    number: int
    layout: str
    sample: Any

    @property
    def name(self) -> str:
        direction = "backward" if self.backward else "forward"
        number = f" {self.number}" if self.number else ""
        layout = f" {self.layout}" if self.layout != "given" else ""
        return f"{full_name(self.op)} {str(self.dtype)[6:]} {direction}{number}{layout}"


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for op in chosen(options.part, options.which, options.only):
        for name in options.dtypes.split(","):
            dtype = getattr(torch, name)
            if dtype not in op.supported_dtypes(options.device) or op.name in UNDETERMINED:
                continue
            for backward in (False, True):
                if backward and not (
                    op.supports_autograd and dtype in op.supported_backward_dtypes(options.device)
                ):
                    continue
                for number, sample in samples(op, dtype, backward, options):
                    for layout in options.layouts.split(","):
                        laid = sample if layout == "given" else laid_out(sample, layout)
                        if laid is not None:
                            yield Case(op, dtype, backward, number, layout, laid)


def samples(
    op: Any, dtype: torch.dtype, backward: bool, options: argparse.Namespace
) -> Iterator[tuple[int, Any]]:
    """The first of the operator's samples and others at equal distances, with their numbers."""
    torch.manual_seed(0)
    every = op.sample_inputs(options.device, dtype, requires_grad=backward)
    if options.samples == 1:
        yield from islice(enumerate(every), 1)
        return
    found = list(enumerate(every))
    count = min(options.samples, len(found))
    yield from (found[k * len(found) // count] for k in range(count))


def laid_out(sample: Any, layout: str) -> SampleInput | None:
    """The sample with tensors of another layout; None where that changes nothing."""
    given = (sample.input, sample.args, sample.kwargs)
    values = LAYOUTS[layout](given)
    if values is None:
        return None
    first, args, kwargs = values
    return SampleInput(first, args=args, kwargs=kwargs)


@dataclass
class Judgement:
    """`result`, with the reason in `why`. `externs`: (operation, reason); `numpy`: (op, reason) of loops without a
    kernel; `own`: whether a kernel of ours ran; `broken`: what the backend raised where Dynamo broke the graph."""

    result: str
    why: str = ""
    externs: list[tuple[str, str]] = field(default_factory=list)
    numpy: list[tuple[str, str]] = field(default_factory=list)
    own: bool = False
    broken: str = ""

    def inductor_has_more(self) -> list[str]:
        """The externs that are kernels under Inductor, which leaves complex numbers to eager as we do."""
        foreign = any("complex" in why for _, why in self.externs)
        return [] if foreign else [name for name, _ in self.externs if name in generated()]


@cache
def generated() -> frozenset[str]:
    """The overloads that Inductor generates kernels for, itself or by what it makes of them."""
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import fallbacks, lowerings

    found = {str(o) for o in (*lowerings, *decompositions) if o not in fallbacks}
    library = {
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "convolution",
        "convolution_backward",
        "_scaled_mm",
        "_int_mm",
    }
    return frozenset(
        name for name in found if name.split(".")[1:2] and name.split(".")[1] not in library
    )


def judge(op: Any, sample: Any, backward: bool, kernels: str) -> Judgement:
    values = (sample.input, *sample.args)

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    def run(function: Any, given: Any = (values, sample.kwargs)) -> Any:
        torch.manual_seed(0)
        args, kwargs = copied(given)
        if backward:
            out, grads = gradients(function, args, kwargs)
            return detached(out), grads, shared(out, (args, kwargs))
        out = function(*args, **kwargs)
        return detached(out), [], shared(out, (args, kwargs))

    try:
        expected, again = run(call), run(call)
    except Exception as error:
        return Judgement("skipped", f"eager: {type(error).__name__}")
    if difference(again, expected) is not None:
        return Judgement("skipped", "eager differs from itself")
    torch._dynamo.reset()
    counters.clear()
    options: dict[str, Any] = {"random": "eager", "kernels": kernels}
    compiled = torch.compile(call, backend="tessera", dynamic=False, options=options)
    with recording() as graphs:
        try:
            found = run(compiled)
        except Exception as error:
            where = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            return Judgement("skipped" if untraceable(run, call) else "error", where)
    externs = sorted({extern for g in graphs for extern in g.externs})
    steps = [s for g in graphs if isinstance(g.run, Executable) for s in g.run.plan.steps]
    own = any(isinstance(s, Launch) for s in steps)
    numpy = [(s.op.opcode, s.reason) for s in steps if isinstance(s, Interpret)]
    failed = "".join(b for b in counters["graph_break"] if b.startswith("Backend compiler"))
    if failed and untraceable(run, call):
        failed = ""
    why = difference(found, expected)
    result = "equal" if why is None else "differs"
    if why is not None:
        exact = partial(run, call, wide((values, sample.kwargs)))
        if difference(found, run(traced(call))) is None:
            result = "as traced"
        elif difference(found, expected, strides=False) is None:
            planned = tree_map(squeezed, run(traced(call, decompositions())))
            if difference(tree_map(squeezed, found), planned) is None:
                result = "as traced"
        elif found[2] == expected[2] and as_exact(exact, found, expected):
            result = "as exact"
        elif op.name in PLACES and difference(found[0][0], expected[0][0]) is None:
            result = "skipped"
    return Judgement(result, why or "", externs, numpy, own, failed)


def shared(results: Any, given: Any) -> list[list[int]]:
    """For each result the numbers of the given tensors, and of the results up to it, whose memory it has."""
    found: list[list[int]] = []
    known = [memory(x) for x in tensors(given)]
    for x in tensors(results):
        known.append(memory(x))
        found.append([k for k, m in enumerate(known) if m is not None and m == known[-1]])
    return found


def memory(x: torch.Tensor) -> int | None:
    if x.layout != torch.strided or not x.numel():
        return None
    return x.untyped_storage().data_ptr()


def squeezed(x: Any) -> Any:
    return x.squeeze() if isinstance(x, torch.Tensor) and x.layout == torch.strided else x


def traced(call: Any, decomposed: Any = None) -> Any:
    """The function as torch traces it, run by eager; with decompositions, its results have the strides that tracing
    foretells."""
    torch._dynamo.reset()
    compiler = foretold if decomposed else lambda graph, _: graph.forward
    backend = aot_autograd(fw_compiler=compiler, decompositions=decomposed)
    return torch.compile(call, backend=backend, dynamic=False)


def foretold(graph: torch.fx.GraphModule, _: Any) -> Any:
    nodes: Any = graph.graph.output_node().args[0]

    def laid(x: Any, node: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            return x
        return torch.empty_strided(x.shape, node.meta["val"].stride(), dtype=x.dtype).copy_(x)

    return lambda *args: [laid(x, n) for x, n in zip(graph(*args), nodes, strict=True)]


def untraceable(run: Callable[[Any], Any], call: Any) -> bool:
    """Whether torch's tracing fails, too, or breaks the graph because of an error."""
    counters.clear()
    try:
        run(traced(call))
    except Exception:
        return True
    return any(b.startswith("Backend compiler") for b in counters["graph_break"])


WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip


def wide(values: Any) -> Any:
    """The same with tensors and types of float64."""

    def widened(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return WIDE.get(x, x)
        if not isinstance(x, torch.Tensor) or x.dtype not in WIDE:
            return x
        return x.detach().to(WIDE[x.dtype]).requires_grad_(x.requires_grad)

    return tree_map(widened, values)


def as_exact(run: Callable[[], Any], found: Any, expected: Any) -> bool:
    """Whether floats are no further from those that `run` gives in float64 than twice those of eager, and finite or not
    as one of the two."""
    try:
        exact = tensors(run())
    except Exception:
        return False
    for x, y, true in zip(tensors(found), tensors(expected), exact, strict=True):
        if x.dtype not in WIDE:
            if not torch.equal(x, y):
                return False
            continue
        rounded = true.to(x.dtype)
        a, b, t, r = (
            (torch.view_as_real(v) if v.is_complex() else v).to(torch.float64)
            for v in (x, y, true, rounded)
        )
        alike = torch.isclose(a, r, 0, 0, equal_nan=True) | torch.isclose(
            a, b, 0, 0, equal_nan=True
        )
        if not (a.isfinite() & (b.isfinite() | r.isfinite()) | alike).all():
            return False
        finite = a.isfinite() & t.isfinite()  # where eager is not, it is infinitely far
        far = [
            float((v - t)[finite].abs().nan_to_num(INF).max()) if finite.any() else 0.0
            for v in (a, b)
        ]
        if far[0] > 2 * far[1]:
            return False
    return True


def table(files: list[str]) -> None:
    """For each type: how many cases had each result."""
    rows: dict[str, Counter[str]] = {}
    for name in files:
        for line in Path(name).read_text().splitlines():
            case = json.loads(line)
            rows.setdefault(case["case"].split()[1], Counter())[case["result"]] += 1
    show(rows, RESULTS)


def show(rows: Mapping[str, Counter[str]], results: Sequence[str]) -> None:
    """Print a table with a row for each type."""
    print("|", " | ".join(["type", *results]), "|")
    for name, count in rows.items():
        print("|", " | ".join([name, *(str(count[result]) for result in results)]), "|")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--which", type=int, default=0)
    parser.add_argument("--only")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--layouts", default="given")
    parser.add_argument("--kernels", default="compiled")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--out")
    parser.add_argument("--table", nargs="+", default=[])
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return 0
    warnings.simplefilter("ignore")
    count: Counter[str] = Counter()
    fallen: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    out = open(options.out, "a") if options.out else None  # noqa: SIM115
    begin = time.perf_counter()
    for case in cases(options):
        if time.perf_counter() - begin > options.seconds:
            print("stopped at", case.name)
            break
        start = time.perf_counter()
        found = judge(case.op, case.sample, case.backward, options.kernels)
        more = found.inductor_has_more()
        count[found.result] += 1
        count["kernels"] += found.own
        count["numpy"] += bool(found.numpy)
        count["inductor has more"] += bool(more)
        count["broken"] += bool(found.broken)
        fallen.update({name for name, _ in found.externs})
        missing.update(set(more))
        name = case.name
        if out:
            row = {"case": name, **asdict(found), "more": more}
            out.write(json.dumps({**row, "seconds": round(time.perf_counter() - start, 2)}) + "\n")
            out.flush()
        if found.result in ("differs", "error"):
            print(f"{found.result:8} {name}: {found.why}", flush=True)
        if found.broken:
            print(f"broken   {name}: {found.broken.splitlines()[-1][:200]}", flush=True)
        for what, why in found.numpy:
            print(f"numpy    {name}: {what}: {why[:100]}", flush=True)
    print("externs:", ", ".join(f"{name} {n}" for name, n in fallen.most_common(60)))
    print("kernels under Inductor:", ", ".join(f"{name} {n}" for name, n in missing.most_common()))
    print(dict(count), f"{time.perf_counter() - begin:.0f} s")
    return 1 if count["differs"] + count["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
