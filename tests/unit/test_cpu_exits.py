"""What the CPU back end once refused: every operation of tile IR that a kernel for it may hold has a general way."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.coordinates import Coordinates
from tessera.backends.cpu.emitter import Emitter
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.ir import Op
from tessera.ops import tile
from tests.unit.cpu_kit import agree
from tests.unit.dot_sweep import levels


def numbers(*shape: int, t: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(t)


# --- reshapes under products --------------------------------------------------------------------------------
@tessera.jit
def heads(
    p, b, c, T, H: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, TURNED: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """Rows of several heads, one under the other, as the left or (turned) the right operand."""
    M: tl.constexpr = H * Q
    d = tl.make_tensor_descriptor(p, [H, Q, K * T], [Q * K * T, K * T, 1], [H, Q, K])
    m, k = tl.arange(0, M), tl.arange(0, K)
    square = tl.load(b + k[:, None] * K + k[None, :])
    if LOOP:
        acc = tl.zeros((K, M) if TURNED else (M, K), tl.float32)
        for i in range(T):
            a = d.load([0, 0, i * K]).reshape(M, K)
            acc += tl.dot(square, a.T) if TURNED else tl.dot(a, square)
    else:
        a = d.load([0, 0, 0]).reshape(M, K)
        acc = (tl.dot(square, a.T) if TURNED else tl.dot(a, square)).to(tl.float32)
    tl.store(c + (k[:, None] * M + m[None, :] if TURNED else m[:, None] * K + k[None, :]), acc)


@pytest.mark.parametrize("isa", [x for x in levels() if x != "amx"])
@pytest.mark.parametrize("shape", [(2, 32, 64), (8, 8, 16)])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("loop", [0, 1])
def test_a_reshaped_block_of_a_descriptor_is_multiplied(isa, shape, turned, loop):
    h, q, k = shape
    for t in (np.float32, np.int8):
        with knobs.scope():
            knobs.cpu.isa = isa
            agree(heads, (1,), numbers(h, q, 2 * k, t=t), numbers(k, k, t=t, seed=1),
                  np.zeros(h * q * k, np.float32), 2, H=h, Q=q, K=k, TURNED=turned, LOOP=loop)  # fmt: skip


def test_panels_of_any_width_are_read_in_vectors():
    """AVX2 packs 24 columns at a time, which no reshape of powers of two divides: B is brought into memory first."""
    sizes = {"H": 2, "Q": 32, "K": 64, "TURNED": 1, "LOOP": 0}
    kinds = {"p": "*fp32", "b": "*fp32", "c": "*fp32", "T": "i32"} | dict.fromkeys(
        sizes, "constexpr"
    )
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    source = ASTSource(heads, kinds, sizes, attrs)
    text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
    assert text.count("insertelement <8 x float>") < 200


EVALUATE = {
    "mul": operator.mul,
    "add": operator.add,
    "udiv": operator.floordiv,
    "urem": operator.mod,
}


@pytest.mark.parametrize("divisor", [1, 2, 3, 8, 24, 64])
@pytest.mark.parametrize("factor", [1, 3, 6, 8, 24, 64])
@pytest.mark.parametrize("base", [0, 1, 5, 24])
def test_any_coordinate_of_one_element_is_divided(divisor, factor, base):
    """Quotient and remainder as code, evaluated for each index; what is claimed of them holds."""
    made: list[str] = []

    class Recorder(Emitter):
        def op(self, text: str) -> str:
            made.append(text)
            return f"%{len(made)}"

    co = Coordinates(Recorder({}, {}))
    parts = co.divided(co.index("%0", 1, 16).times(factor).shifted(base), divisor)
    assert parts is not None
    for i in range(16):
        values = {"%0": i}
        for n, text in enumerate(made, 1):
            name, *words = text.replace(",", " ").split()
            a, b = (values[x] if x in values else int(x) for x in words[-2:])
            values[f"%{n}"] = EVALUATE[name](a, b)
        found = [c.base + sum(values[t] * f for t, f in c.terms) for c in parts]
        assert found == list(divmod(i * factor + base, divisor))
        assert all(v % co.align.get(name, 1) == 0 for name, v in values.items())
        assert all(v < co.extent.get(name, v + 1) for name, v in values.items())


# --- combine functions ----------------------------------------------------------------------------------------
@tessera.jit
def by_loop(a, b):
    for i in range(3):
        a = tl.maximum(a, b - i)
    return a


@tessera.jit
def by_while(a, b):
    """The greatest common divisor."""
    while b != 0:
        a, b = b, a % b
    return tl.abs(a)


@tessera.jit
def by_division(a, b):
    return (a * b) // tl.where(a * b == 0, 1, tl.minimum(a, b))


@tessera.jit(noinline=True)
def larger(a, b):
    return tl.where(a > b, a, b)


@tessera.jit
def by_call(a, b):
    return larger(a, b)


@tessera.jit
def by_assert(a, b):
    tl.device_assert(a > -100, "too small")
    return a + b


@tessera.jit
def combined(
    x, most, prefixes, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    v = tl.load(x + at)
    tl.store(most + tl.arange(0, N if AXIS == 0 else M), tl.reduce(v, AXIS, F))
    tl.store(prefixes + at, tl.associative_scan(v, AXIS, F))


@pytest.mark.parametrize("fn", [by_loop, by_while, by_division, by_call, by_assert])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [(8, 32), (32, 2)])
def test_combine_functions_that_take_one_element_at_a_time(fn, axis, size):
    m, n = size
    x, most = numbers(m, n, t=np.int32), np.zeros(n if axis == 0 else m, np.int32)
    agree(
        combined, (1,), x, most, np.zeros_like(x), F=fn, M=m, N=n, AXIS=axis, debug=fn is by_assert
    )


# --- sums of products -------------------------------------------------------------------------------------------
DOT = """module {{num_warps=4, num_ctas=1, num_stages=3, target='cpu:native'}} {{
  func {{name='k'}} (%a_ptr: *i8, %c_ptr: *{acc}) {{
    %i: tile<16xi32> = arange {{start=0, end=16}}
    %r: tile<16x1xi32> = expand_dims %i {{axis=1}}
    %n: tile<16x1xi32> = const {{value=16}}
    %s: tile<16x1xi32> = mul %r, %n
    %t: tile<16x16xi32> = broadcast %s
    %c: tile<1x16xi32> = expand_dims %i {{axis=0}}
    %d: tile<16x16xi32> = broadcast %c
    %at: tile<16x16xi32> = add %t, %d
    %p: tile<16x16x*i8> = splat %a_ptr
    %q: tile<16x16x*i8> = addptr %p, %at
    %x: tile<16x16xi8> = load %q, _, _
    %zero: tile<16x16x{acc}> = const {{value=1}}
    %y: tile<16x16x{acc}> = dot %x, %x, %zero
    %u: tile<16x16x*{acc}> = splat %c_ptr
    %v: tile<16x16x*{acc}> = addptr %u, %at
    store %v, %y, _
    return []
  }}
}}
"""


@pytest.mark.parametrize(("acc", "t"), [("i64", np.int64), ("i16", np.int16), ("i8", np.int8)])
def test_integer_sums_of_any_width(acc, t, tmp_path: Path):
    """The language has int32 sums only; IR may have others."""
    path = tmp_path / "dot.tir"
    path.write_text(DOT.format(acc=acc))
    kernel = tessera.compile(str(path), target=GPUTarget("cpu", "native", 1))
    a, c = numbers(16, 16, t=np.int8) * 9, np.zeros((16, 16), t)
    kernel[(1, 1, 1)](a, c)
    np.testing.assert_array_equal(c, (a.astype(np.int64) @ a.astype(np.int64) + 1).astype(t))


def test_what_has_no_lowering_is_for_gpus():
    """Operations of clusters and of PTX, which other stages refuse or never make."""
    from tessera.backends.cpu.lowering import EVALUATORS, SINKS

    missing = {
        x.opcode for x in _leaves(Op) if x not in EVALUATORS and x not in SINKS and _neutral(x)
    }
    descriptors = {x for x in missing if "descriptor" in x}  # which a pass lowers
    assert missing - descriptors <= {
        "cta_rank", "breakpoint", "inline_asm", "volatile_asm", "func", "return", "yield", "condition"
    }  # fmt: skip
    assert tile.DotOp in SINKS


def _leaves(base: type) -> list[Any]:
    return [x for c in base.__subclasses__() for x in (c, *_leaves(c)) if getattr(c, "opcode", "")]


def _neutral(c: Any) -> bool:
    return (
        c.__module__.startswith("tessera.ops.")
        and not c.__module__.endswith((".gpu", ".mbarrier"))
        and bool(c.opcode)
    )
