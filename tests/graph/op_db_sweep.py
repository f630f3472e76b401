"""torch's op_db under backend="tessera", beside eager: values, strides, gradients. Prints a table.

    python tests/graph/op_db_sweep.py [--part 20] [--dtypes float32,int64] [--kernels interpreted] [--out FILE]

A case is an operator, a dtype, a sample and a direction. Results: `equal`; `skipped` (eager does not take it, or its
result is not determined); `as traced` (other strides than eager's, but those of torch's own tracing, which
backend="aot_eager" gives, too); `differs`; `error`. A case has `kernels` when one of ours ran, else only externs did.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch._dynamo
from torch.testing._internal.common_methods_invocations import op_db

from tests.graph.torch_kit import copied, detached, difference, gradients, recording

DTYPES = "float32,float64,float16,bfloat16,int64,int32,uint8,bool"
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


def cases(options: argparse.Namespace) -> Iterator[tuple[Any, torch.dtype, Any, bool]]:
    for op in chosen(options.part, options.which, options.only):
        for name in options.dtypes.split(","):
            dtype = getattr(torch, name)
            if dtype not in op.supported_dtypes("cpu") or op.name in UNDETERMINED:
                continue
            for backward in (False, True):
                if backward and not (
                    op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
                ):
                    continue
                torch.manual_seed(0)
                samples = op.sample_inputs("cpu", dtype, requires_grad=backward)
                for sample in islice(samples, options.samples):
                    yield op, dtype, sample, backward


def judge(op: Any, sample: Any, backward: bool, kernels: str) -> tuple[str, str, set[str], bool]:
    """(result, detail, externs, whether a kernel of ours ran)."""
    values = (sample.input, *sample.args)

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    def run(function: Any) -> Any:
        torch.manual_seed(0)
        args, kwargs = copied((values, sample.kwargs))
        if backward:
            out, grads = gradients(function, args, kwargs)
            return detached(out), grads
        return detached(function(*args, **kwargs)), []

    try:
        expected, again = run(call), run(call)
    except Exception as error:
        return "skipped", f"eager: {type(error).__name__}", set(), False
    if difference(again, expected) is not None:
        return "skipped", "eager differs from itself", set(), False
    torch._dynamo.reset()
    options: dict[str, Any] = {"random": "eager", "kernels": kernels}
    compiled = torch.compile(call, backend="tessera", dynamic=False, options=options)
    with recording() as graphs:
        try:
            found = run(compiled)
        except Exception as error:
            where = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            return "error", where, set(), False
    names = {name for g in graphs for name, _ in g.externs}
    own = any(g.imported is not None and g.imported.lowered for g in graphs)
    why = difference(found, expected)
    if why is not None and why.startswith("strides"):
        torch._dynamo.reset()
        traced = run(torch.compile(call, backend="aot_eager", dynamic=False))
        if difference(traced, expected) == why:
            return "as traced", why, names, own
    return ("equal" if why is None else "differs"), why or "", names, own


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--which", type=int, default=0)
    parser.add_argument("--only")
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--kernels", default="compiled")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    count: Counter[str] = Counter()
    fallen: Counter[str] = Counter()
    out = open(options.out, "a") if options.out else None  # noqa: SIM115
    begin = time.perf_counter()
    for op, dtype, sample, backward in cases(options):
        if time.perf_counter() - begin > options.seconds:
            print("stopped at", full_name(op))
            break
        start = time.perf_counter()
        result, why, names, own = judge(op, sample, backward, options.kernels)
        count[result] += 1
        count["kernels"] += own
        fallen.update(names)
        direction = "backward" if backward else "forward"
        if out:
            row = [full_name(op), str(dtype)[6:], direction, result, why, sorted(names), own]
            out.write(json.dumps([*row, round(time.perf_counter() - start, 2)]) + "\n")
            out.flush()
        if result in ("differs", "error"):
            print(f"{result:8} {full_name(op)} {str(dtype)[6:]} {direction}: {why}", flush=True)
    print("externs:", ", ".join(f"{name} {n}" for name, n in fallen.most_common(60)))
    print(dict(count), f"{time.perf_counter() - begin:.0f} s")
    return 1 if count["differs"] + count["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
