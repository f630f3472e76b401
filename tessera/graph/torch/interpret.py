"""Runs a graph by its meaning, in NumPy, on torch's tensors: for tests, and to tell faults of kernels from others."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tessera.graph.ir.interp import bind_symbols, function_of, interpret
from tessera.graph.ir.ops import ExternOp, WriteOp
from tessera.graph.ir.types import TensorType
from tessera.graph.torch.host import TorchHost, as_typed, environment
from tessera.graph.torch.types import any_torch_type
from tessera.ir import Module

CARRIED_WIDER = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class Interpreted:
    """A graph as a function of a list of tensors and numbers, which it empties."""

    def __init__(self, module: Module, host: TorchHost) -> None:
        self.module, self.host = module, host
        self.function = function_of(module)
        self.written = [op.target for op in self.function.body if isinstance(op, WriteOp)]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given = list(inputs)
        inputs.clear()
        arrays = [array_of(x) if isinstance(x, torch.Tensor) else x for x in given]
        symbols = bind_symbols(self.function, arrays)
        results = interpret(self.module, arrays, self._extern)
        for target in self.written:
            given[target.index].copy_(tensor_of(arrays[target.index], target.type))
        types = [v.type for v in self.function.body.terminator.operands]
        env = environment(symbols)
        return [
            as_typed(tensor_of(r, t), t, env) if isinstance(t, TensorType) else r.item()
            for r, t in zip(results, types, strict=True)
        ]

    def _extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> list[np.ndarray]:
        env = environment(symbols)
        tensors = [
            as_typed(tensor_of(a, v.type), v.type, env)
            if isinstance(v.type, TensorType)
            else a.item()
            for a, v in zip(arrays, op.args, strict=True)
        ]
        return [array_of(x) for x in self.host.extern(op, tensors, symbols)]


def array_of(x: torch.Tensor) -> np.ndarray:
    """The tensor as the interpreter carries it; shares memory where the type allows."""
    x = x.detach().resolve_conj().resolve_neg()
    return (x.float() if x.dtype in CARRIED_WIDER else x).cpu().numpy()


def tensor_of(array: Any, t: TensorType) -> torch.Tensor:
    """The inverse of `array_of`, on the type's device, as a tensor of its own."""
    return (
        torch.tensor(np.asarray(array))
        .to(t.device, any_torch_type(t.elem))
        .reshape(np.shape(array))
    )
