"""The families of random kernels. Each module has TABLE (features), `draw(random)` and `build(features, seed)`."""

from __future__ import annotations

from random import Random
from types import ModuleType

from tests.fuzz.case import Case
from tests.fuzz.generators import dots, edges, features, loops, reused, rows
from tests.fuzz.generators.features import Features

FAMILIES: dict[str, ModuleType] = {
    "dots": dots, "loops": loops, "reused": reused, "rows": rows, "edges": edges,
}  # fmt: skip


def drawn(family: str, seed: int) -> Features:
    """The features of the kernel with this number."""
    return FAMILIES[family].draw(Random(f"{family} {seed}"))


def built(family: str, chosen: Features, seed: int) -> Case:
    return FAMILIES[family].build(chosen, seed)


def simpler(family: str, chosen: Features) -> list[Features]:
    return list(features.simpler(FAMILIES[family].TABLE, chosen))
