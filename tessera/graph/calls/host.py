"""Defines what a library of arrays gives to a compiled graph: memory, views of it, addresses, and its own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import numpy as np

from tessera.dtypes import int1
from tessera.errors import LaunchError
from tessera.graph.index import Expr, Sym
from tessera.graph.ir.ops import ExternOp
from tessera.graph.ir.types import Name, Place
from tessera.interp.numerics import storage

GraphCall = Callable[[list[Any]], list[Any]]  # takes arguments in a list, which it empties


class Host(Protocol):
    """An array library on one device. Element types are its own, `kind` of tessera's; offsets are in bytes, strides in
    elements."""

    def kind(self, elem: Any) -> Any:
        """The library's element type for one of tessera's."""
        ...

    def empty(self, size: int) -> Any:
        """Memory of `size` bytes that begins at a multiple of 256; what it holds is anything."""
        ...

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...], kind: Any) -> Any:
        """A new array of this layout; what it holds is anything."""
        ...

    def view(
        self, base: Any, offset: int, shape: Sequence[int], strides: Sequence[int], kind: Any
    ) -> Any:
        """An array whose element 0 lies `offset` bytes behind that of `base`, in the same memory."""
        ...

    def address(self, array: Any) -> int:
        """Where element 0 of an array lies."""
        ...

    def aligned(self, array: Any) -> Any:
        """An array of the same layout and elements that begins at a multiple of 16 bytes."""
        ...

    def write_back(self, array: Any, copy: Any) -> None:
        """Give an array the elements of what `aligned` made of it."""
        ...

    def to_numpy(self, array: Any, elem: Any) -> Any:
        """A NumPy array of the same elements as they lie in memory: uint16 for bf16, uint8 for fp8 and int1."""
        ...

    def fill(self, array: Any, values: Any, elem: Any) -> None:
        """Write the elements of a NumPy array of such a kind."""
        ...

    def stream(self) -> int:
        """The queue that kernels are launched into; 0 for a host without any."""
        ...

    def on_device(self, call: GraphCall) -> GraphCall:
        """The call of a graph with the host's device as the current one."""
        ...

    def extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> Sequence[Any]:
        """The results of a function of the library, each with the strides of the op's result type; none of them shares
        memory with an argument."""
        ...

    def prepared(self, op: ExternOp) -> Callable[[Sequence[Any], Mapping[str, int]], Sequence[Any]]:
        """The same as a function of arrays and symbols, with all looked up that no call changes."""
        ...


class _Memory:
    """A place in the memory of `base`, which it keeps alive, in the words of NumPy's array interface."""

    def __init__(
        self, base: Any, address: int, shape: Sequence[int], steps: Sequence[int], kind: str
    ):
        self.base = base
        self.__array_interface__ = {
            "data": (address, False), "shape": tuple(shape), "strides": tuple(steps), "typestr": kind, "version": 3
        }  # fmt: skip


class NumpyHost:
    """NumPy arrays on the CPU. `functions`: what extern ops may call, by their targets."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]] | None = None):
        self.functions = dict(functions or {})

    def kind(self, elem: Any) -> Any:
        return np.dtype(np.bool_) if elem is int1 else np.dtype(storage(elem))

    def empty(self, size: int) -> Any:
        memory = np.empty(size + 256, np.uint8)
        start = -self.address(memory) % 256
        return memory[start : start + size]

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...], kind: Any) -> Any:
        return self.view(self.empty(span(shape, strides) * kind.itemsize), 0, shape, strides, kind)

    def view(
        self, base: Any, offset: int, shape: Sequence[int], strides: Sequence[int], kind: Any
    ) -> Any:
        memory = _Memory(
            base, self.address(base) + offset, shape, [s * kind.itemsize for s in strides], kind.str
        )
        return np.asarray(memory)

    def address(self, array: Any) -> int:
        return array.__array_interface__["data"][0]

    def aligned(self, array: Any) -> Any:
        return array  # the CPU reads at any address

    def write_back(self, array: Any, copy: Any) -> None:
        np.copyto(array, copy)

    def to_numpy(self, array: Any, elem: Any) -> Any:
        return np.asarray(array)

    def fill(self, array: Any, values: Any, elem: Any) -> None:
        np.copyto(array, values, casting="unsafe")

    def stream(self) -> int:
        return 0

    def on_device(self, call: GraphCall) -> GraphCall:
        return call

    def extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> Sequence[Any]:
        function = self.functions.get(op.target)
        if function is None:
            known = ", ".join(sorted(self.functions)) or "none"
            raise LaunchError(f"this host has no function {op.target!r}", help=f"it has: {known}")
        given = [filled(a, arrays, symbols) for a in op.arguments]
        named = {k: filled(a, arrays, symbols) for k, a in op.keywords}
        found: Any = function(*given, **named)
        several = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
        return [
            self._laid_out(x, r.type, symbols) for x, r in zip(several, op.results, strict=True)
        ]

    def prepared(self, op: ExternOp) -> Callable[[Sequence[Any], Mapping[str, int]], Sequence[Any]]:
        return partial(self.extern, op)

    def _laid_out(self, x: Any, t: Any, symbols: Mapping[str, int]) -> Any:
        """The array with the strides of its type."""
        sizes = {Sym(name): n for name, n in symbols.items()}
        strides = tuple(n if isinstance(n, int) else n.evaluate(sizes) for n in t.all_strides)
        if tuple(s // x.itemsize for s in x.strides) == strides:
            return x
        made = self.strided(x.shape, strides, self.kind(t.elem))
        np.copyto(made, x, casting="unsafe")
        return made


def filled(argument: Any, arrays: Sequence[Any], symbols: Mapping[str, int]) -> Any:
    """An argument of an extern op with arrays and sizes in their places; of names only the text is known here."""
    if isinstance(argument, Place):
        return arrays[argument.index]
    if isinstance(argument, Expr):
        return argument.evaluate({Sym(name): n for name, n in symbols.items()})
    if isinstance(argument, Name):
        return argument.name
    if isinstance(argument, list | tuple):
        return [filled(a, arrays, symbols) for a in argument]  # pyright: ignore[reportUnknownVariableType]
    return argument


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided array; 0 where it has none."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
