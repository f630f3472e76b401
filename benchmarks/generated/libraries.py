"""What functions of published libraries launch: `breadth.py --set libraries`. A library that is not installed is an
error of its cases, and of no other."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import importlib.util
import os
from typing import Any
from unittest.mock import patch

import torch

import generated.gems_cases  # noqa: F401  adds its cases
from generated.library_cases import CASES


def noted(name: str, dtype: Any) -> tuple[list[Any], list[str]]:
    """The kernels that a case launches, and what could not be noted."""
    from published import stand_ins
    from torch._subclasses.fake_tensor import FakeTensorMode

    from generated.launches import OnGPU, noting

    case = CASES[name]
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    root = case.function.split(":")[0].split(".")[0]
    if importlib.util.find_spec(root) is None:
        raise ModuleNotFoundError(f"{root} is not installed")
    with patch.object(stand_ins, "Lenient", OnGPU), stand_ins.everything_there(root):
        call = case.call()
    with FakeTensorMode(), noting(case.below) as notes:
        values = case.inputs(dtype)
        if case.training:
            for x in values:
                if isinstance(x, torch.Tensor) and x.dtype.is_floating_point:
                    x.requires_grad_()
        error = None
        try:
            found = call(*values)
            if case.training:
                outputs = [
                    x
                    for x in (found if isinstance(found, (tuple, list)) else [found])
                    if isinstance(x, torch.Tensor) and x.requires_grad
                ]
                torch.autograd.backward(outputs, [torch.empty_like(x) for x in outputs])
        except Exception as failure:
            if not notes.kernels:
                raise
            error = f"{type(failure).__name__}: {failure}"[:200]
    return [*notes.kernels.values()], notes.errors + ([error] if error else [])
