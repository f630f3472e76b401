"""A process that lets Inductor write kernels, or notes those of libraries. See pool.py.

A task is (name, mode, dtype), its answer the kernels.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "inductor"))
# isort: off
import tessera.compat  # noqa: F401  before anything that imports triton
import torch

from generated import libraries, operations, pool
from generated.fakes import programs_of
from generated.kernel import parsed
# isort: on


def operation(name: str, training: bool, dtype: Any) -> Callable[[Any], Any]:
    function, values = operations.made(name, dtype, training)

    def step(compiler: Any) -> None:
        found = operations.outputs(compiler(function)(*values))
        if training and found:
            torch.stack([x.float().sum() for x in found]).sum().backward()

    return step


def model(name: str, mode: str, dtype: Any) -> Callable[[Any], Any]:
    """With fakes in place of real parameters and inputs, once the module has its dtype: fakes cannot be converted."""
    import model_cases
    import models
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._pytree import tree_map_only

    model_cases.SMALL_BATCH, model_cases.SMALL_TOKENS = models.BATCH, models.TOKENS  # as on a GPU
    with unset_fake_temporarily():
        case = model_cases.made(name, mode, dtype, "cpu")
    fakes = torch._guards.detect_fake_mode()
    assert fakes is not None
    known: dict[int, Any] = {}  # parameters may be shared
    for module in case.module.modules():
        for own in (module._parameters, module._buffers):
            for key, x in own.items():
                if x is not None:
                    fake = known.setdefault(id(x), fakes.from_tensor(x))
                    own[key] = fake
    case.args, case.kwargs = tree_map_only(
        torch.Tensor, fakes.from_tensor, (case.args, case.kwargs)
    )
    return lambda compiler: case.step(compiler(case.module))()


def written(task: list[str]) -> dict[str, Any]:
    name, mode, dtype = task
    kind = getattr(torch, dtype)
    if name in libraries.CASES:
        kernels, errors = libraries.noted(name, kind)
        return {"kernels": [json.dumps(asdict(k)) for k in kernels], "left_out": errors}

    def make() -> Callable[[Any], Any]:
        if name in operations.OPERATIONS:
            return operation(name, mode == "training", kind)
        return model(name, mode, kind)

    kernels = [k for code in programs_of(make) for k in parsed(code)]
    return {"kernels": [json.dumps(asdict(k)) for k in kernels]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    pool.serve(written)
