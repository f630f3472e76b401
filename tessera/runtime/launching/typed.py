"""Names what `kernel[grid]` is for type checkers: a function with the kernel's parameters, and launch options.

A checker cannot add keywords to the parameters of a function. So a launch without options is checked against the
kernel's parameters, and one with an option only for the types of the options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, Self, SupportsIndex, TypeAlias, overload

from tessera.compiler.kernel import CompiledKernel

P = ParamSpec("P")
Extents: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Grid: TypeAlias = Extents | Callable[[dict[str, Any]], Extents]  # the arguments by name
Result: TypeAlias = Any  # the CompiledKernel; None if a hook vetoed the compilation


class Launch(Protocol, Generic[P]):
    """`kernel[grid]`, to be called with the arguments and options."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...
    @overload
    def __call__(self, *args: object, num_warps: int, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, num_stages: int, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, num_ctas: int, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, maxnreg: int | None, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, debug: bool | str, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, disable_optimizations: str, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, pointer_maps: bool, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, any_extent: bool, **kwargs: object) -> Result: ...
    @overload
    def __call__(self, *args: object, index_bits: int, **kwargs: object) -> Result: ...
    def __call__(self, *args: object, **kwargs: object) -> Result: ...


class Timeline(Protocol):
    """What `kernel.trace[grid](...)` returns: a `tessera.profiler.tracing.Trace`."""

    name: str
    kernel: CompiledKernel
    grid: tuple[int, ...]
    target: str
    unit: str
    warps: list[Any]
    ctas: int
    launched: int
    lost: int
    records: int

    @property
    def roles(self) -> tuple[str, ...]: ...
    def spans(self, ctas: Sequence[int] | None = None) -> Iterator[Any]: ...
    def rows(self) -> Sequence[Any]: ...
    def save(self, path: str | Path, ctas: Sequence[int] | None = None) -> Path: ...


class Traces(Protocol):
    """`kernel.trace`: a launch by a grid, or limits of what is kept."""

    def __call__(self, records: int | None = None, ctas: int | None = None) -> Self: ...
    def __getitem__(self, grid: Grid) -> Callable[..., Timeline]: ...
