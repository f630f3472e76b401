"""Tells a kernel what it is being compiled for, as compile-time values (`tl.target_info`).

On the host the same functions tell of the target that launches compile for; in a `constexpr_function`, of the one that
its kernel is being compiled for.
"""

# pyright: reportReturnType=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from tessera.language.builtin import builtin, on_host

if TYPE_CHECKING:
    from tessera.language.operand_types import IntLike
    from tessera.language.values import constexpr


class Target(Protocol):
    """What is asked of a `GPUTarget` here."""

    @property
    def backend(self) -> str: ...

    @property
    def arch(self) -> int | str: ...


_COMPILED_FOR: ContextVar[Target | None] = ContextVar("compiled_for", default=None)
LAUNCHES: list[Callable[[], Target]] = []
"""How to find the target of launches: the drivers are in a layer above, which adds this."""


@contextmanager
def compiled_for(target: Target | None) -> Generator[None]:
    """Within it the functions below, called on the host, tell of `target`."""
    token = _COMPILED_FOR.set(target)
    try:
        yield
    finally:
        _COMPILED_FOR.reset(token)


def _target() -> Target:
    return _COMPILED_FOR.get() or LAUNCHES[-1]()


def _is(backend: str) -> Callable[[], bool]:
    return lambda: _target().backend == backend


def _never() -> bool:
    return False


def _capability_geq(major: int, minor: int = 0) -> bool:
    target = _target()
    return target.backend == "cuda" and int(target.arch) >= major * 10 + minor


@on_host(_target)
@builtin
def current_target() -> constexpr:
    """The `GPUTarget` of this compilation, as a compile-time value with `backend`, `arch` and `warp_size`.

    Example:
        >>> tl.target_info.current_target().backend == "cuda"
        int1: 0
    """


@on_host(_is("cuda"))
@builtin
def is_cuda() -> constexpr:
    """Whether the target is an NVIDIA GPU, as a compile-time bool.

    Example:
        >>> tl.target_info.is_cuda()
        int1: 0
    """


@on_host(_is("hip"))
@builtin
def is_hip() -> constexpr:
    """Whether the target is an AMD GPU, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip()
        int1: 0
    """


@on_host(_never)
@builtin
def is_hip_cdna3() -> constexpr:
    """Whether the target is an AMD GPU of the CDNA 3 family, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip_cdna3()
        int1: 0
    """


@on_host(_never)
@builtin
def is_hip_cdna4() -> constexpr:
    """Whether the target is an AMD GPU of the CDNA 4 family, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip_cdna4()
        int1: 0
    """


@on_host(_never)
@builtin
def is_hip_gfx1250() -> constexpr:
    """Whether the target is an AMD GPU of the family gfx1250, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip_gfx1250()
        int1: 0
    """


@on_host(_capability_geq)
@builtin
def cuda_capability_geq(major: IntLike, minor: IntLike = 0) -> constexpr:
    """Whether the target is an NVIDIA GPU of at least the compute capability `major`.`minor`, as a compile-time bool.

    Raises:
        not-constexpr: a number is known at run time only: `tl.target_info.cuda_capability_geq(tl.num_programs(0))`.

    Example:
        >>> tl.target_info.cuda_capability_geq(9, 0)
        int1: 0
    """
