"""Makes the tensors of compiled graphs by torch, and runs their externs."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tessera.graph.index import Expr, Sym
from tessera.graph.ops import ExternOp
from tessera.graph.torch_types import any_torch_type
from tessera.graph.types import Name, Place

# Types whose elements NumPy has, too.
PLAIN = frozenset((
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
))  # fmt: skip
LARGEST_SEED = (1 << 63) - 1


def draw_seed(device: str) -> torch.Tensor:
    """One random number of torch's generator, from which the kernels of a call make theirs."""
    return torch.randint(-LARGEST_SEED - 1, LARGEST_SEED, (1,), dtype=torch.int64, device=device)


class TorchHost:
    """Runs the externs that `targets` knows; `objects` is what names in their arguments stand for."""

    def __init__(
        self,
        targets: Mapping[str, Callable[..., Any]],
        objects: Mapping[str, Any],
        device: str = "cpu",
    ) -> None:
        self.targets = {"tessera.seed": draw_seed, **targets}
        self.objects = objects
        self.device = device
        self.may_alias = {name: _may_alias(target) for name, target in self.targets.items()}

    # --- tensors ------------------------------------------------------------------------------------------------
    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def strided(self, shape: Sequence[int], strides: Sequence[int], elem: Any) -> torch.Tensor:
        kind = any_torch_type(elem)
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device=self.device)

    def view(
        self,
        base: torch.Tensor,
        offset: int,
        shape: Sequence[int],
        strides: Sequence[int],
        elem: Any,
    ) -> torch.Tensor:
        """A tensor whose element 0 lies `offset` bytes behind that of `base`."""
        kind = any_torch_type(elem)
        typed = torch.empty(0, dtype=kind, device=base.device)
        start = base.storage_offset() * base.element_size() + offset
        return typed.set_(
            base.untyped_storage(), start // kind.itemsize, tuple(shape), tuple(strides)
        )

    def address(self, array: torch.Tensor) -> int:
        return array.data_ptr()

    def aligned(self, array: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy where it does not begin at a multiple of 16 bytes."""
        if array.data_ptr() % 16 == 0:
            return array
        copy = torch.empty_strided(
            array.shape, array.stride(), dtype=array.dtype, device=array.device
        )
        return copy.copy_(array)

    def write_back(self, array: torch.Tensor, copy: torch.Tensor) -> None:
        array.copy_(copy)

    def to_numpy(self, array: torch.Tensor, elem: Any) -> np.ndarray:
        """The elements as they lie in memory: uint16 for bf16, uint8 for truth values and floats of 8 bits."""
        of_bits = torch.uint8 if array.element_size() == 1 else torch.int16
        plain = array.dtype in PLAIN
        x = (array if plain else array.view(of_bits)).cpu().numpy()
        return x.view(np.uint16) if array.dtype == torch.bfloat16 else x

    def fill(self, array: torch.Tensor, values: np.ndarray, elem: Any) -> None:
        """Write elements of such a kind."""
        values = np.array(values, order="C")  # torch wants memory that may be written
        if array.dtype == torch.bfloat16:
            values = values.astype(np.uint16, copy=False).view(np.int16)
        given = torch.from_numpy(values)
        array.copy_(given if array.dtype in PLAIN else given.view(array.dtype))

    def stream(self) -> int:
        """The current CUDA stream; 0 on the CPU."""
        if not self.device.startswith("cuda"):
            return 0
        return torch.cuda.current_stream(self.device).cuda_stream

    # --- externs ------------------------------------------------------------------------------------------------
    @staticmethod
    def environment(symbols: Mapping[str, int]) -> dict[Any, int]:
        """What expressions are evaluated with."""
        return {Sym(name): value for name, value in symbols.items()}

    def extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> tuple[torch.Tensor, ...]:
        """The tensors that an extern gives; never one that shares memory with an argument."""
        env = self.environment(symbols)

        def argument(value: Any) -> Any:
            if isinstance(value, Place):
                return arrays[value.index]
            if isinstance(value, Expr):
                return value.evaluate(env)
            if isinstance(value, Name):
                return self.objects[value.name]
            return [argument(v) for v in value] if isinstance(value, (list, tuple)) else value

        with torch.no_grad():
            found = self.targets[op.target](
                *map(argument, op.arguments), **{name: argument(v) for name, v in op.keywords}
            )
        several = found if isinstance(found, (list, tuple)) else (found,)
        results = [x for x in several if isinstance(x, torch.Tensor)]
        if self.may_alias[op.target]:
            results = _apart(results, arrays)
        return tuple(as_typed(x, v.type, env) for x, v in zip(results, op.results, strict=True))


def as_typed(x: torch.Tensor, t: Any, env: Mapping[Any, int]) -> torch.Tensor:
    """A result with the strides that its type says; eager's choice may differ from what torch traced."""
    strides = tuple(s if isinstance(s, int) else int(s.evaluate(env)) for s in t.all_strides)
    if x.stride() == strides or x.numel() == 0:
        return x
    real = [k for k, n in enumerate(x.shape) if n != 1]
    if all(x.stride(k) == strides[k] for k in real):
        return x.as_strided(x.shape, strides)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _may_alias(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


def _apart(results: Sequence[torch.Tensor], tensors: Sequence[Any]) -> list[torch.Tensor]:
    """The results, copied where they share memory with an argument or an earlier result."""
    seen = {x.untyped_storage().data_ptr() for x in tensors if isinstance(x, torch.Tensor)}
    found: list[torch.Tensor] = []
    for x in results:
        place = x.untyped_storage().data_ptr()
        found.append(x.clone() if place in seen else x)
        seen.add(place)
    return found
