"""Makes the tensors of compiled graphs by torch, and runs their externs."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from tessera.backends.compiler import GPUTarget
from tessera.errors import MissingMemory
from tessera.graph.calls.host import GraphCall
from tessera.graph.index import Expr, Sym
from tessera.graph.ir.ops import ExternOp
from tessera.graph.ir.types import Name, Place
from tessera.graph.torch.types import MOVE, PRODUCT, SEED, WRITE, Places, any_torch_type

# Types whose elements NumPy has, too.
PLAIN = frozenset((
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128,
))  # fmt: skip
# Faster than torch's public functions for the same, where this torch has them.
_C: Any = torch._C  # whose stubs lack most of it
_QUICK = _C._dynamo.guards
reinterpret = getattr(_QUICK, "_reinterpret_tensor", None)
LARGEST_SEED = (1 << 63) - 1
NO_MEMORY = (
    "a compiled graph was given a tensor without memory: a transform (`torch.vmap`, `is_grads_batched=True`) or a "
    "tracer took the place of its tensors after the graph was compiled"
)
NO_MEMORY_HELP = "compile the function that applies the transform, or apply it to the function that is not compiled"


def draw_seed(device: str) -> torch.Tensor:
    """One random number of torch's generator, from which the kernels of a call make theirs."""
    return torch.randint(-LARGEST_SEED - 1, LARGEST_SEED, (1,), dtype=torch.int64, device=device)


def moved(x: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """A copy of a tensor on a device, in the same strides, of which 0 may be one. The CPU does not wait for what it
    gives away: CUDA has read pageable memory when the call returns, pinned memory perhaps not."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    memory = torch.as_strided(x, (span if x.numel() else 0,), (1,))
    wait = x.is_cuda or x.is_pinned()
    return memory.to(device, copy=True, non_blocking=not wait).as_strided(x.shape, x.stride())


def assign(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def fast_empty_strided(device: str) -> Callable[..., torch.Tensor] | None:
    """`torch.empty_strided(shape, strides, type)` on a device, without the cost of its arguments' parsing."""
    name = "_empty_strided_cuda" if device.startswith("cuda") else "_empty_strided_cpu"
    return getattr(_QUICK, name, None)  # on the current device: `on_device`


# Externs that are no operation of torch's graph.
OWN_TARGETS: dict[str, Callable[..., Any]] = {
    SEED: draw_seed, MOVE: moved, WRITE: assign, PRODUCT: torch.ops.aten.mm.default,
}  # fmt: skip


def target_of(device: str) -> GPUTarget | None:
    """The GPU that a graph is compiled for; None for this machine's CPU."""
    if not device.startswith("cuda"):
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return GPUTarget("cuda", 10 * major + minor, 32)


def current(device: str) -> AbstractContextManager[None]:
    """A region in which the device is the current one: kernels are loaded and launched there."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


class TorchHost:
    """Runs the externs that `targets` knows; `objects` is what names in their arguments stand for, `places` which of
    their results a graph has."""

    def __init__(
        self,
        targets: Mapping[str, Callable[..., Any]],
        objects: Mapping[str, Any],
        device: str = "cpu",
        places: Places | None = None,
    ) -> None:
        self.targets = {**OWN_TARGETS, **targets}
        self.objects = objects
        self.device = device
        self.places = places or {}
        if device.startswith("cuda"):
            index = torch.device(device).index
            self.index: int = torch.cuda.current_device() if index is None else index
            self.stream = partial(_C._cuda_getCurrentRawStream, self.index)
        self.may_alias = {name: _may_alias(target) for name, target in self.targets.items()}
        if (fast := fast_empty_strided(device)) is not None:
            self.strided = fast

    # --- tensors ------------------------------------------------------------------------------------------------
    def kind(self, elem: Any) -> torch.dtype:
        return any_torch_type(elem)

    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def strided(
        self, shape: Sequence[int], strides: Sequence[int], kind: torch.dtype
    ) -> torch.Tensor:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device=self.device)

    def view(
        self,
        base: torch.Tensor,
        offset: int,
        shape: Sequence[int],
        strides: Sequence[int],
        kind: torch.dtype,
    ) -> torch.Tensor:
        """A tensor whose element 0 lies `offset` bytes behind that of `base`."""
        if reinterpret is not None:
            if base.dtype != kind:  # bytes: an arena, which may end between two elements
                beyond = base.shape[0] % kind.itemsize
                base = (base[:-beyond] if beyond else base).view(kind)
            return reinterpret(base, tuple(shape), tuple(strides), offset // kind.itemsize)
        typed = torch.empty(0, dtype=kind, device=base.device)
        start = base.storage_offset() * base.element_size() + offset
        return typed.set_(
            base.untyped_storage(), start // kind.itemsize, tuple(shape), tuple(strides)
        )

    def address(self, array: torch.Tensor) -> int:
        try:
            return array.data_ptr()
        except RuntimeError:
            raise MissingMemory(NO_MEMORY, help=NO_MEMORY_HELP) from None

    def aligned(self, array: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of its memory where it does not begin at a multiple of 16 bytes."""
        if array.data_ptr() % 16 == 0:
            return array
        copy = torch.empty_strided(
            array.shape, array.stride(), dtype=array.dtype, device=array.device
        )
        return copy.copy_(_as_it_lies(array))

    def write_back(self, array: torch.Tensor, copy: torch.Tensor) -> None:
        _as_it_lies(array).copy_(copy)

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
        """The device's current CUDA stream; 0 on the CPU."""
        return 0

    def on_device(self, call: GraphCall) -> GraphCall:
        """The call with the host's device as the current one, since kernels are launched there; afterwards the current
        device is what it was. Where torch sees one device this is the call itself."""
        if not self.device.startswith("cuda") or torch.cuda.device_count() < 2:
            return call
        wanted, found = self.index, _C._cuda_getDevice

        def guarded(inputs: list[Any]) -> list[Any]:
            if found() == wanted:
                return call(inputs)
            with torch.cuda.device(wanted):
                return call(inputs)

        return guarded

    # --- externs ------------------------------------------------------------------------------------------------
    def extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> Sequence[torch.Tensor]:
        """The tensors that an extern gives; never one that shares memory with an argument."""
        return self.prepared(op)(arrays, symbols)

    def prepared(self, op: ExternOp) -> Callable[..., Sequence[torch.Tensor]]:
        """`extern` as a function of arrays and symbols."""
        target, may_alias = self.targets[op.target], self.may_alias[op.target]
        # Of results that nobody uses eager may give what torch's tracing did not foretell, of another rank for example.
        types = [v.type if v.uses else None for v in op.results]
        places = self.places.get((op.target, len(types)))
        sized = any(
            _is_sized(x)
            for x in (op.arguments, op.keywords, *(t.all_strides for t in types if t is not None))
        )
        strides = None if sized else [t and tuple(t.all_strides) for t in types]
        varying = [(k, x) for k, x in enumerate(op.arguments) if _varies(x)]
        varying_keywords = [(name, x) for name, x in op.keywords if _varies(x)]
        fixed = [None if _varies(x) else self._argument(x, (), {}) for x in op.arguments]
        keywords = {n: None if _varies(x) else self._argument(x, (), {}) for n, x in op.keywords}

        def run(arrays: Sequence[Any], symbols: Mapping[str, int]) -> Sequence[torch.Tensor]:
            env = environment(symbols) if sized else {}
            given, named = fixed.copy(), keywords.copy()
            for k, x in varying:
                given[k] = self._argument(x, arrays, env)
            for name, x in varying_keywords:
                named[name] = self._argument(x, arrays, env)
            found = target(*given, **named)
            several = found if isinstance(found, (list, tuple)) else (found,)
            # Eager may give tensors where torch's tracing foretold none, or none where nobody uses what it foretold.
            if places is not None:
                results = [several[k] for k in places]
            else:
                results = [x for x in several if isinstance(x, torch.Tensor)]
            if may_alias:
                results = _apart(results, arrays)
            exact = strides or [t and strides_of(t, env) for t in types]
            pairs = zip(results, exact, strict=True)
            return [x if x is None or s is None else with_strides(x, s) for x, s in pairs]

        def without_grad(arrays: Sequence[Any], symbols: Mapping[str, int]) -> Any:
            if not torch.is_grad_enabled():
                return run(arrays, symbols)
            with torch.no_grad():
                return run(arrays, symbols)

        return without_grad

    def _argument(self, value: Any, arrays: Sequence[Any], env: Mapping[Any, int]) -> Any:
        kind = type(value)
        if kind is Place:
            return arrays[value.index]
        if isinstance(value, Expr):
            return value.evaluate(env)
        if kind is Name:
            return self.objects[value.name]
        if isinstance(value, (list, tuple)):
            return [self._argument(v, arrays, env) for v in value]
        return value


def environment(symbols: Mapping[str, int]) -> dict[Any, int]:
    """What expressions are evaluated with."""
    return {Sym(name): value for name, value in symbols.items()}


def _varies(value: Any) -> bool:
    """Whether an argument of an extern differs between calls."""
    if isinstance(value, (list, tuple)):
        return any(map(_varies, value))
    return isinstance(value, (Place, Expr))


def _is_sized(value: Any) -> bool:
    """Whether a symbol is in the arguments of an extern."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_sized, value))
    return isinstance(value, Expr)


def strides_of(t: Any, env: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(s if isinstance(s, int) else int(s.evaluate(env)) for s in t.all_strides)


def as_typed(x: torch.Tensor, t: Any, env: Mapping[Any, int]) -> torch.Tensor:
    """A result with the strides that its type says."""
    return with_strides(x, strides_of(t, env))


def with_strides(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A result with these strides; eager's choice may differ from what torch traced."""
    if x.stride() == strides or x.numel() == 0:
        return x
    real = [k for k, n in enumerate(x.shape) if n != 1]
    if all(x.stride(k) == strides[k] for k in real):
        return x.as_strided(x.shape, strides)
    once = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]  # what lies there once
    made = torch.empty_strided(once.shape, strides, dtype=x.dtype, device=x.device).copy_(once)
    return made.as_strided(x.shape, strides)


def _may_alias(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


def _apart(results: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The results, copied where they share memory with an argument or an earlier result."""
    seen = {x.untyped_storage().data_ptr() for x in tensors if isinstance(x, torch.Tensor)}
    found: list[Any] = []
    for x in results:
        if x is None:
            found.append(x)
            continue
        place = x.untyped_storage().data_ptr()
        found.append(x.clone() if place in seen else x)
        seen.add(place)
    return found


def _as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """What memory holds whose elements count with the other sign, as those of `z.conj().imag` do; else the tensor."""
    return torch.ops.aten._neg_view(x) if x.is_neg() else x
