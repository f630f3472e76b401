"""Tells which arrays of a launch alias each other: the CPU back end moves loads past stores through another argument.

Such code is right if the two arrays do not alias, or if they are the same array and the indices are equal. The
relations of all pairs of a launch's pointers are encoded in one number with two bits for each pair, in the order
(0, 1), (0, 2), (1, 2), (0, 3)…: SAME start, or PARTLY overlapping memory. The number is part of the key of native
launches. Their code (native/aliasing) computes it too, but calls this module for tensors that overlap if they start at
the beginnings of their storages.

The memory of an array is taken to go from its address to the end of its storage, since a kernel may leave the view that
it was given: two views of one array at different addresses overlap partly even where they are disjoint. Only the start
of a raw address is known: a kernel may access any memory behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tessera.runtime.arguments.dlpack import memory_of, speaks_dlpack
from tessera.runtime.arguments.tensors import address_of, is_numpy

SAME, PARTLY = 1, 2
MOST_PAIRS = 28  # pairs with bits of their own; all others share the last two bits
AT_MOST = 1 << 61  # the flag by which native code marks a size as an upper bound
UNKNOWN = 1 << 62  # bytes behind an address whose storage is unknown


def memory_range(x: Any) -> tuple[int, int]:
    """Return the memory of an argument: (address of element 0, bytes from there to the end of the storage)."""
    if isinstance(x, int):
        return x, UNKNOWN
    if is_numpy(x):
        root: Any = x
        while (base := _array_below(root)) is not None:
            root = base
        address = _address(x)
        return address, (_address(root) - address if root is not x else 0) + span(root)
    if hasattr(x, "untyped_storage"):
        storage, address = x.untyped_storage(), x.data_ptr()
        start = storage.data_ptr() if hasattr(storage, "data_ptr") else address
        return address, start + storage.nbytes() - address
    if speaks_dlpack(x):
        memory = memory_of(x)
        return memory.address, memory.nbytes
    if getattr(x, "base", None) is not None:  # a typed view: TensorWrapper
        return memory_range(x.base)
    return address_of(x), getattr(x, "nbytes", UNKNOWN)


def _array_below(x: Any) -> Any:
    """Return the array that a NumPy array is a view of, even if another object that keeps it alive stands between."""
    base = x.base if is_numpy(x.base) else getattr(x.base, "base", None)
    return base if is_numpy(base) else None


def span(x: Any) -> int:
    """Return the bytes from the first element of a NumPy array to the end of its last one in memory."""
    if x.flags.c_contiguous or x.size == 0:
        return x.nbytes
    steps = (max(0, (n - 1) * s) for n, s in zip(x.shape, x.strides, strict=True))
    return x.itemsize + sum(steps)


def _address(x: Any) -> int:
    return x.__array_interface__["data"][0]


def relations(
    arrays: Iterable[object], range_of: Callable[[Any], tuple[int, int]] = memory_range
) -> int:
    """Return how the pointers of a launch overlap, two bits for each pair in the order of parameters.

    `arrays` may contain addresses as ints."""
    bits, pair = 0, 0
    seen: list[tuple[int, int]] = []
    for x in arrays:
        new = range_of(x)
        for old in seen:
            bits |= _relation(old, new) << 2 * min(pair, MOST_PAIRS - 1)
            pair += 1
        seen.append(new)
    return bits


def _relation(a: tuple[int, int], b: tuple[int, int]) -> int:
    if a[0] == 0 or b[0] == 0:
        return 0
    if a[0] == b[0]:
        return SAME
    (low, size), (high, _) = min(a, b), max(a, b)
    return PARTLY if low + size > high else 0


def violates(
    assumed: Sequence[Sequence[int]],
    kinds: Sequence[str],
    arguments: Iterable[object],
    range_of: Callable[[Any], tuple[int, int]] = memory_range,
) -> bool:
    """Whether these run-time arguments break an assumption of the kernel (its metadata `assumed_disjoint`). The kernel
    may take more, which launchers add."""
    order = [i for i, kind in enumerate(kinds) if kind.startswith("*")]
    pointers = [x for x, kind in zip(arguments, kinds, strict=False) if kind.startswith("*")]
    bits = relations(pointers, range_of)
    if bits == 0:
        return False
    place = {position: rank for rank, position in enumerate(order)}
    for i, j, same in assumed:
        a, b = place[i], place[j]
        pair = b * (b - 1) // 2 + a
        found = bits >> 2 * min(pair, MOST_PAIRS - 1) & 3
        if found & PARTLY or (found & SAME and not same):
            return True
    return False
