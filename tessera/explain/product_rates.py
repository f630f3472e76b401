"""Measures matrix products on the CPU at hand: how fast they are depends on the instructions for a type, and on what
converting, packing and registers that do not suffice cost beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from tessera.backends.compiler import GPUTarget
from tessera.compiler.compile import compile as compile_kernel
from tessera.compiler.source import ASTSource
from tessera.config import knobs
from tessera.dtypes import bfloat16, float16, float32, float64, int8, int32, uint8
from tessera.explain.probes import product  # pyright: ignore[reportUnknownVariableType]
from tessera.explain.timing import SHIFT, ones, typical
from tessera.runtime.driver import driver_named

SIDE = 512  # of square matrices: packed operands are used often enough to be little of the time
TILE, STEP = 256, 64  # of the result, and along K: a usual choice of kernels on CPUs
ROUNDS = 5
KINDS = {t.name: t for t in (float32, float64, bfloat16, float16, int8, uint8)}


class ProductRates(Mapping[str, float]):
    """Operations of products a second by type of the operands, each measured when it is first asked for."""

    def __init__(self, threads: int) -> None:
        self.threads, self.found = threads, dict[str, float]()

    def __getitem__(self, kind: str) -> float:
        if kind not in KINDS:
            raise KeyError(kind)
        if kind not in self.found:
            self.found[kind] = self.threads * 2.0 * SIDE**3 / _seconds(kind)
        return self.found[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(KINDS)

    def __len__(self) -> int:
        return len(KINDS)


def _seconds(kind: str) -> float:
    """Return the seconds that one core takes for a product of matrices of a type."""
    elem = KINDS[kind]
    acc = int32 if elem.is_int() else float64 if elem.bits == 64 else float32
    signature = {
        "a": f"*{elem.short}",
        "b": f"*{elem.short}",
        "c": f"*{acc.short}",
        "N": "i32",
        "K": "i32",
    }
    even = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
    constants = {"BLOCK": TILE, "STEP": STEP, "ACC": acc}
    target = driver_named("cpu").get_current_target()
    assert isinstance(target, GPUTarget)
    source = ASTSource(product, signature, constants, even)  # pyright: ignore[reportUnknownArgumentType]
    kernel = compile_kernel(source, target)[((SIDE // TILE) ** 2, 1, 1)]
    a, b, c = ones(elem.short, SIDE**2), ones(elem.short, SIDE**2, SHIFT), ones(acc.short, SIDE**2)
    with knobs.runtime.scope():
        knobs.runtime.num_threads = 1
        return typical(partial(kernel, a, b, c, SIDE, SIDE), ROUNDS)
