"""What kernels are drawn from: named features, each with its values, the simplest first.

A kernel is a function of its features and the seed of its data. So a failing kernel shrinks by itself: one feature at
a time takes a simpler value as long as the kernel still fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

Features = dict[str, Any]


class Pick:
    """One of `values`; `weights` says how often, else the simplest has `plain` of the draws."""

    def __init__(self, *values: Any, plain: float = 0.4, weights: tuple[float, ...] = ()):
        self.values, self.plain, self.weights = values, plain, weights

    def draw(self, random: Random) -> Any:
        if self.weights:
            return random.choices(self.values, self.weights)[0]
        if random.random() < self.plain:
            return self.values[0]
        return random.choice(self.values)

    def simpler(self, value: Any) -> Iterator[Any]:
        yield from self.values[: self.values.index(value)] if value in self.values else self.values


class Several:
    """Up to `most` items, each a tuple of one value of each of `parts`."""

    def __init__(self, *parts: Pick, most: int = 2, none: float = 0.5):
        self.parts, self.most, self.none = parts, most, none

    def draw(self, random: Random) -> Any:
        if random.random() < self.none:
            return ()
        count = random.randint(1, self.most)
        return tuple(tuple(p.draw(random) for p in self.parts) for _ in range(count))

    def simpler(self, value: Any) -> Iterator[Any]:
        yield from (value[:i] + value[i + 1 :] for i in range(len(value)))
        for i, item in enumerate(value):
            for j, part in enumerate(self.parts):
                for other in part.simpler(item[j]):
                    yield (*value[:i], (*item[:j], other, *item[j + 1 :]), *value[i + 1 :])


def draw(table: Mapping[str, Pick | Several], random: Random) -> Features:
    return {name: choice.draw(random) for name, choice in table.items()}


def simpler(table: Mapping[str, Pick | Several], features: Features) -> Iterator[Features]:
    """All kernels that differ in one feature, which is simpler."""
    for name, choice in table.items():
        for value in choice.simpler(features[name]):
            yield {**features, name: value}
