"""Computes a sum of a product in one rounding, as LLVM and ptxas do on GPUs where the IR allows it (`contract`).

An algorithm that relies on the rounded product must fail in the simulator as it does on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tessera.backends.nvidia.primitives.row import Lanes
from tessera.backends.nvidia.simulator.instructions import Env, Run
from tessera.backends.nvidia.simulator.intrinsics import fma
from tessera.backends.nvidia.simulator.text import split_args, typed, vector_of

FLAG = "contract "


class _Product(NamedTuple):
    a: int  # slots of the factors
    b: int
    negated: bool


class Fusion:
    """The products of a program so far, by slot; `value(slot)` is that of a constant, None of others."""

    def __init__(self, value: Callable[[int], object]) -> None:
        self._value = value
        self._products: dict[int, _Product] = {}

    def step(
        self, opcode: str, rest: str, uses: list[int], dest: int
    ) -> tuple[Run, list[int]] | None:
        """Note a product; for a sum or difference of one, return the function that computes it, and what it uses."""
        product = self._product(opcode, rest, uses)
        if product is not None:
            self._products[dest] = product
        elif opcode in ("fadd", "fsub") and rest.startswith(FLAG):
            type = typed(split_args(rest.removeprefix(FLAG))[0])[0]
            return self._sum(vector_of(type)[1], opcode == "fsub", uses)
        return None

    def _product(self, opcode: str, rest: str, uses: list[int]) -> _Product | None:
        if opcode == "fneg" or (opcode == "fmul" and self._is_minus_one(uses[1])):
            of = self._products.get(uses[0])
            if of is not None:
                return of._replace(negated=not of.negated)
        if opcode == "fmul" and rest.startswith(FLAG):
            return _Product(uses[0], uses[1], negated=False)
        return None

    def _is_minus_one(self, slot: int) -> bool:
        value = self._value(slot)
        return isinstance(value, np.ndarray) and bool((value == -1.0).all())

    def _sum(self, type: str, minus: bool, uses: list[int]) -> tuple[Run, list[int]] | None:
        for at in (0, 1):
            if (of := self._products.get(uses[at])) is not None:
                break
        else:
            return None
        other = uses[1 - at]
        negated = of.negated != (minus and at == 1)
        taken = minus and at == 0

        def run(env: Env) -> Lanes:
            x = -env[of.a] if negated else env[of.a]
            return fma(type, x, env[of.b], -env[other] if taken else env[other])

        return run, [of.a, of.b, other]
