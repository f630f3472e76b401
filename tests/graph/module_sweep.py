"""torch's own lists of modules and of optimizers under backend="tessera", beside eager. Prints each fault, and counts.

    python -m tests.graph.module_sweep [--only LayerNorm] [--dtypes float32,bfloat16] [--kinds modules,optimizers]

Of a module (`module_db`) outputs with strides, gradients of inputs and parameters, and buffers are compared, in
training and in evaluation; of an optimizer (`optim_db`) the parameters and its state after four steps, with and
without `foreach`. Results: `equal`; `as exact` (no further from float64 than twice eager's distance); `differs`;
`error`; `skipped` (eager does not take it).
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves, tree_map

from tests.graph.op_db_sweep import as_exact
from tests.graph.torch_kit import copied, detached, difference, gradients, tensors

STEPS = 4
MOST_INPUTS = 6  # of a module's inputs, in a mode and a dtype
SHAPES = ((7, 5), (33,), (2, 3, 4))
UNTRIED = {"LBFGS", "SparseAdam"}  # a closure that is called until it converges; sparse gradients

Run = Callable[[torch.dtype, bool], Any]  # what a case gives in a type, compiled or not


@dataclass
class Case:
    name: str
    dtype: torch.dtype
    run: Run


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="tessera", options={"random": "eager"})


def of_dtype(values: Any, dtype: torch.dtype) -> Any:
    """Copies with floats of another type, which stay leaves."""

    def changed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == dtype:
            return x
        return x.detach().to(dtype).requires_grad_(x.requires_grad)

    return tree_map(changed, copied(values))


def run_module(info: Any, given: Any, train: bool, dtype: torch.dtype, compile_it: bool) -> Any:
    torch.manual_seed(0)
    made, called = given.constructor_input, given.forward_input
    module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(train)
    args, kwargs = of_dtype((called.args, called.kwargs), dtype)
    torch.manual_seed(1)
    parameters = list(module.parameters())

    def call(inputs: Any, _: Any) -> Any:
        return (compiled(module) if compile_it else module)(*inputs[0], **inputs[1])

    out, found = gradients(call, ((args, kwargs), parameters), {})
    return detached(out), found, [b.clone() for b in module.buffers()]


def module_cases(dtype: torch.dtype, only: str) -> Iterator[Case]:
    infos: list[Any] = list(module_db)
    for info, train in product(infos, (True, False)):
        if only not in info.name:
            continue
        settings = {"device": "cpu", "dtype": dtype, "requires_grad": True, "training": train}
        for i, given in enumerate(islice(info.module_inputs_func(info, **settings), MOST_INPUTS)):
            if given.forward_input is not None:
                name = f"{info.name} {'training' if train else 'evaluation'} {i}"
                yield Case(name, dtype, partial(run_module, info, given, train))


def run_optimizer(kind: Any, settings: dict[str, Any], dtype: torch.dtype, compile_it: bool) -> Any:
    torch.manual_seed(0)
    shapes = [s for s in SHAPES if len(s) == 2] if kind.__name__ == "Muon" else SHAPES
    parameters = [torch.nn.Parameter(torch.randn(s).to(dtype)) for s in shapes]
    optimizer = kind(parameters, **copy.deepcopy(settings))
    step = compiled(optimizer.step) if compile_it else optimizer.step
    for _ in range(STEPS):
        for p in parameters:
            p.grad = torch.randn(p.shape).to(dtype)
        step()
    state = [x for x in tree_leaves(optimizer.state_dict()["state"]) if isinstance(x, torch.Tensor)]
    return detached(parameters), state


def optimizer_cases(dtype: torch.dtype, only: str) -> Iterator[Case]:
    for info in optim_db:
        kind: Any = info.optim_cls
        name = kind.__name__
        if only not in name or name in UNTRIED:
            continue
        kinds = (
            ({"foreach": False}, {"foreach": True}) if "foreach" in info.supported_impls else ({},)
        )
        for given, more in product(info.optim_inputs_func(device="cpu"), kinds):
            settings = {**given.kwargs, **more}
            yield Case(f"{name} {settings}", dtype, partial(run_optimizer, kind, settings))


CASES = {"modules": module_cases, "optimizers": optimizer_cases}


def judge(case: Case) -> tuple[str, str]:
    """The result, and why it is one."""
    try:
        expected = case.run(case.dtype, False)
    except Exception as error:
        return "skipped", str(error)
    try:
        found = case.run(case.dtype, True)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    why = difference(found, expected)
    if why is None:
        return "equal", ""
    alike = len(tensors(found)) == len(tensors(expected)) and not why.startswith("strides")
    if alike and as_exact(lambda: case.run(torch.float64, False), found, expected):
        return "as exact", why
    return "differs", why


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--kinds", default="modules,optimizers")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = 64
    counts: Counter[str] = Counter()
    for kind, dtype in product(options.kinds.split(","), options.dtypes.split(",")):
        for case in CASES[kind](getattr(torch, dtype), options.only):
            result, why = judge(case)
            counts[result] += 1
            if result in ("differs", "error", "as exact"):
                print(f"{result}: {case.name}, {dtype}: {' '.join(why.split())[:300]}", flush=True)
    print(", ".join(f"{n} {result}" for result, n in sorted(counts.items())))
    return 1 if counts["differs"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
