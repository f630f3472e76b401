"""A random kernel as data: its source text, its arguments and what is compared. Everything prints and reads back."""

from __future__ import annotations

import importlib.util
import itertools
import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CANARY = 64  # elements before and behind each array that no kernel may touch
_FILES = tempfile.TemporaryDirectory(prefix="tessera-fuzz-")
_COUNT = itertools.count()


@dataclass
class Array:
    """One array argument.

    `fill`: "ints" (`low` to `high`), "normal", "zeros", "bits" (any integer of the type), "codes" (any bits of a float)
    or "special" (small integers, and `low` percent NaN, infinities and zeros). `offset` moves the base by elements, so
    that it is not aligned.
    """

    name: str
    dtype: str
    size: int
    fill: str = "ints"
    low: int = -2
    high: int = 2
    offset: int = 0
    output: bool = False
    same_as: str = ""  # shares the memory of another argument, `offset` elements behind its first

    def values(self, seed: int, magnitudes: bool = False) -> np.ndarray:
        """The elements at the start, or their magnitudes."""
        return np.abs(self._values(seed)) if magnitudes else self._values(seed)

    def _values(self, seed: int) -> np.ndarray:
        """The elements at the start: float64 for floats, int64 or uint64 for integers."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        if self.fill == "zeros":
            return np.zeros(self.size)
        if self.fill == "ints":
            return rng.integers(self.low, self.high, self.size, endpoint=True)
        if self.fill == "normal":
            return rng.standard_normal(self.size).astype(np.float32).astype(np.float64)
        if self.fill == "codes":
            return rng.integers(0, 2**16, self.size)
        if self.fill == "bits":
            return _any_bits(rng, self.dtype, self.size)
        assert self.fill == "special"
        common = rng.integers(-4, 5, self.size).astype(np.float64)
        odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], self.size)
        return np.where(rng.random(self.size) < self.low / 100, odd, common)


def _any_bits(rng: np.random.Generator, dtype: str, size: int) -> np.ndarray:
    """Integers of the whole range, many of them small or at the ends of the range."""
    width, unsigned = int(dtype[1:]), dtype[0] == "u"
    info = np.iinfo(f"{'u' if unsigned else ''}int{max(width, 8)}")
    if width == 1:
        return rng.integers(0, 2, size)
    wide = rng.integers(info.min, info.max, size, dtype=info.dtype, endpoint=True)
    few = np.array([0, 1, 2, 3, 7, info.max, info.min, info.max - 1], info.dtype)
    return np.where(rng.random(size) < 0.5, wide, rng.choice(few, size))


@dataclass
class Descriptor:
    """A host-made tensor descriptor of the array `base`."""

    name: str
    base: str
    shape: list[int]
    strides: list[int]
    block: list[int]


@dataclass
class Case:
    """One kernel with its launch. `bound`: 0 where results are equal bit for bit (but for the payloads of NaNs and the
    signs of zeros), else the factor of `twin`'s results (the same kernel over magnitudes) that floats may differ by."""

    family: str
    seed: int
    features: dict[str, Any]
    source: str
    arrays: list[Array]
    order: list[str]  # the parameters, by name
    scalars: dict[str, Any] = field(default_factory=dict)
    descriptors: list[Descriptor] = field(default_factory=list)
    grid: tuple[int, ...] = (1,)
    options: dict[str, Any] = field(default_factory=dict)
    bound: float = 0.0
    twin: str = ""
    hosts_only: bool = False  # has a meaning where a program is one thread: warps would race
    ordered: bool = True  # launches on one device give the same bits: no atomic sums of floats

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Case:
        data = json.loads(text)
        data["arrays"] = [Array(**a) for a in data["arrays"]]
        data["descriptors"] = [Descriptor(**d) for d in data["descriptors"]]
        data["grid"] = tuple(data["grid"])
        data["features"] = frozen_features(data["features"])
        return Case(**data)


def frozen(value: Any) -> Any:
    """Lists, as JSON reads them, are tuples again."""
    return tuple(frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


def frozen_features(given: dict[str, Any]) -> dict[str, Any]:
    return {name: frozen(value) for name, value in given.items()}


def load_kernel(source: str) -> Any:
    """The function `kernel` of a source text, in a module of its own."""
    path = Path(_FILES.name) / f"fuzz_{next(_COUNT)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def reproducer(case: Case, devices: list[str], what: str) -> str:
    """A Python file that runs the kernel again: `PYTHONPATH=. python FILE`."""
    shown = "\n".join("# " + line for line in what.splitlines()[:60])
    data = asdict(case)
    data["source"] = "read from this file"
    return "\n".join([
        f"# {case.family}, seed {case.seed}, on {', '.join(devices)}", shown, case.source.rstrip(), "", "",
        'if __name__ == "__main__":',
        "    from tests.fuzz.reproduce import main", "",
        f"    main(__file__, {devices!r}, {json.dumps(data)!r})", "",
    ])  # fmt: skip
