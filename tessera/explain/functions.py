"""Measures what element-wise functions cost on the CPU at hand, where one element takes several instructions.

A kernel that loads, computes and stores a tile which stays in the first cache is timed in turn with one that only moves
it, and with multiply-adds in registers, whose time per element is the unit: what other programs do to the core then
concerns all three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from statistics import median

import numpy as np

from tessera.backends.compiler import GPUTarget
from tessera.compiler.compile import compile as compile_kernel
from tessera.compiler.source import TextSource
from tessera.config import knobs
from tessera.dtypes import dtype
from tessera.explain.cpu_machine import multiply_add_seconds
from tessera.explain.timing import SHIFT, ones
from tessera.ir import Op, elem_of, print_op
from tessera.runtime.driver import driver_named

BLOCK = 1024  # elements of a tile: operands and results stay in the first cache of any CPU
PROGRAMS = 512  # of a launch, which then takes far longer than to start it
ROUNDS = 5  # of which the median counts
TRIPS = 25_000  # of the loop of multiply-adds, which then takes about as long
MEASURED = frozenset((
    "div", "rem", "sqrt", "sqrt_rn", "rsqrt", "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "pow", "fast_log2", "fast_sin", "fast_cos",
    "fast_rcbrt", "erfinv_ratio", "bessel_i0", "bessel_i1", "asinh", "acosh", "atanh", "atan2", "remainder",
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "mulhi", "mul", "cast",
))  # fmt: skip


def cost(op: Op) -> float:
    """Return as how many multiply-adds of fp32 one element of an op takes."""
    elems = [elem_of(v.type) for v in (*op.operands, *op.results)]
    kinds = tuple(k.short for k in elems if isinstance(k, dtype) and k.bits >= 8)
    if (
        op.opcode not in MEASURED
        or len(kinds) < len(elems)
        or (op.opcode == "mul" and kinds[0] == "fp32")
    ):
        return 1.0
    attributes = print_op(op).partition(" {")[2].partition("}")[0]
    return _measured(op.opcode, attributes, kinds, knobs.cpu.isa or "")


@cache
def _measured(opcode: str, attributes: str, kinds: tuple[str, ...], isa: str) -> float:
    *operands, result = kinds
    names = ", ".join(f"%v{i}" for i in range(len(operands)))
    computed = f"%r: tile<{BLOCK}x{result}> = {opcode} {names}" + (
        f" {{{attributes}}}" if attributes else ""
    )
    whole, moved = probe(operands, result, computed), probe(operands[:1], operands[0], "")
    ratios: list[float] = []
    with knobs.runtime.scope():
        knobs.runtime.num_threads = 1
        for _ in range(ROUNDS):
            unit = multiply_add_seconds(TRIPS, 1)
            taken = _seconds(whole) - _seconds(moved)
            ratios.append(taken / (PROGRAMS * BLOCK) / unit)
    return max(1.0, median(ratios))


def _seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def probe(operands: list[str], result: str, computed: str) -> partial[None]:
    """Return a launch that loads tiles, computes and stores the result; the first operand without `computed`."""
    params = ", ".join(f"%p{i}: *{k}" for i, k in enumerate([*operands, result]))
    aligned = ", ".join("[['divisibility', 16]]" for _ in range(len(operands) + 1))
    lines = [f"%at: tile<{BLOCK}xi32> = arange {{start=0, end={BLOCK}}}"]
    for i, kind in enumerate([*operands, result]):
        lines.append(f"%s{i}: tile<{BLOCK}x*{kind}> = splat %p{i}")
        lines.append(f"%a{i}: tile<{BLOCK}x*{kind}> = addptr %s{i}, %at")
    lines += [f"%v{i}: tile<{BLOCK}x{kind}> = load %a{i}, _, _" for i, kind in enumerate(operands)]
    lines += [computed] if computed else []
    lines += [f"store %a{len(operands)}, {'%r' if computed else '%v0'}, _", "return []"]
    target = driver_named("cpu").get_current_target()
    assert isinstance(target, GPUTarget)
    text = (
        f"module {{num_warps=4, num_ctas=1, num_stages=3, target='cpu:{target.arch}'}} {{\n"
        f"func {{name='probe', arg_attrs=[{aligned}]}} ({params}) {{\n"
        + "\n".join(lines)
        + "\n}\n}\n"
    )
    kernel = compile_kernel(TextSource(text, "probe", text), target)
    given = _arrays([result, *operands])
    given.append(given.pop(0))
    run = partial(kernel[(PROGRAMS, 1, 1)], *given)
    run()
    return run


def _arrays(kinds: list[str]) -> list[np.ndarray]:
    """Return tiles of ones. Each begins a little further in its pages than the one before: a load waits for a store
    that is under way to an address with the same 12 last bits."""
    return [ones(kind, BLOCK, i * SHIFT) for i, kind in enumerate(kinds)]
