"""Checks that all configs compute the same: compares results of single runs from the same state, up to rounding.

The first config is the reference. Arrays that it leaves unchanged are inputs. If more than half of the other configs
(at least two) differ in an array, it is taken for scratch memory whose content depends on the config, such as partial
sums, and is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.runtime.arguments.tensors import agree, clone, copy_into, itemsize_of, same_bits

MOST_BYTES = 4 << 30  # of arrays in total; the checker makes two copies of them


def arrays_of(named: Mapping[str, object]) -> dict[str, Any]:
    """Return the array arguments by name."""
    return {
        name: x
        for name, x in named.items()
        if hasattr(x, "dtype")
        and hasattr(x, "shape")
        and (hasattr(x, "clone") or hasattr(x, "copy"))
    }


class Checker:
    """Compares runs: each is enclosed by `restore()` and `record(config)`; `wrong()` returns the configs that
    differ."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays
        self.affordable = bool(arrays) and sum(map(_bytes, arrays.values())) <= MOST_BYTES
        self.before = {n: clone(x) for n, x in arrays.items()} if self.affordable else {}
        self.reference: dict[str, object] | None = None
        self.differing: dict[object, set[str]] = {}

    def restore(self) -> None:
        """Restore the arrays' contents from before the runs."""
        for name, content in self.before.items():
            copy_into(self.arrays[name], content)

    def record(self, config: object) -> None:
        """Record the results of a run with `config`."""
        if self.reference is None:
            changed = [n for n, x in self.arrays.items() if not same_bits(x, self.before[n])]
            self.reference = {n: clone(self.arrays[n]) for n in changed}
            self.before = {n: self.before[n] for n in changed}
            return
        self.differing[config] = {
            n for n, x in self.reference.items() if not agree(self.arrays[n], x)
        }

    def wrong(self) -> list[Any]:
        """Return the configs that differ in an array that is not scratch."""
        counts = {
            n: sum(n in names for names in self.differing.values()) for n in self.reference or ()
        }
        scratch = {
            n for n, count in counts.items() if count >= 2 and 2 * count > len(self.differing)
        }
        return [c for c, names in self.differing.items() if names - scratch]


def _bytes(x: Any) -> int:
    count = 1
    for extent in x.shape:
        count *= int(extent)
    return count * itemsize_of(x.dtype)
