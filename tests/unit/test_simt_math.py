"""Accuracy of the mathematical functions in LLVM IR, against mpmath, over special values and many magnitudes."""

# pyright: basic
from __future__ import annotations

import math
import re

import mpmath
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.interp.directed import directed
from tessera.language.extra import libdevice
from tessera.ops import DIRECTED
from tests.simt_kit import Compiled
from tests.unit.simt_math_kit import BOUNDS, EDGES, SIZE, apply_kernel, inputs, reference, worst

C = "constexpr"
PTX_DIRECTIONS = {"rz": "rz", "rd": "rm", "ru": "rp"}


@tessera.jit
def apply2_kernel(x, y, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i)))


@pytest.mark.parametrize("kind", [0, 1], ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_error_in_ulp(name, kind):
    elem, dtype = ("fp32", np.float32) if kind == 0 else ("fp64", np.float64)
    fn = getattr(tl, name, None) or getattr(libdevice, name)
    x = inputs(dtype)
    out = np.zeros_like(x)
    p = f"*{elem}"
    Compiled(apply_kernel, {"x": p, "out": p, "F": C, "N": C}, {"F": fn, "N": SIZE}).run(x, out)
    with mpmath.workprec(200):
        assert worst(out, [reference(name, float(v)) for v in x]) <= BOUNDS[name][kind]


@pytest.mark.parametrize(("elem", "tolerance"), [("fp32", 3e-7), ("fp64", 3e-14)])
@pytest.mark.parametrize("name", ["pow", "atan2", "fmod"])
def test_two_operands(name, elem, tolerance):
    dtype = np.float32 if elem == "fp32" else np.float64
    edges = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 3, -3, 1e30, 1e-30, 2.5]
    rng = np.random.default_rng(3)
    x = np.concatenate([np.repeat(edges, 16), rng.standard_normal(256) * 5]).astype(dtype)
    y = np.concatenate([np.tile(edges, 16), rng.standard_normal(256) * 5]).astype(dtype)
    out = np.zeros_like(x)
    p = f"*{elem}"
    signature = {"x": p, "y": p, "out": p, "F": C, "N": C}
    fn = getattr(libdevice, name)
    Compiled(apply2_kernel, signature, {"F": fn, "N": SIZE}).run(x, y, out)
    numpy_name = {"pow": "power", "atan2": "arctan2", "fmod": "fmod"}[name]
    with np.errstate(all="ignore"):
        want = getattr(np, numpy_name)(x, y)
    np.testing.assert_allclose(out, want, rtol=0 if name == "fmod" else tolerance)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(out)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("seed", range(2))
def test_powers_in_fp32(seed):
    """Within two ulp over all of fp32, bases near 1 with large exponents too."""
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(-100, 88, SIZE))
    x[: SIZE // 2] = rng.uniform(0.3, 4, SIZE // 2)
    x[: SIZE // 8] = 1 + rng.uniform(-1e-2, 1e-2, SIZE // 8)
    x = x.astype(np.float32)
    y = rng.uniform(-150, 128, SIZE) / np.maximum(np.abs(np.log2(x.astype(float))), 1e-6)
    y = y.astype(np.float32)
    out = np.zeros_like(x)
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    Compiled(apply2_kernel, signature, {"F": libdevice.pow, "N": SIZE}).run(x, y, out)
    with mpmath.workprec(120):
        want = [mpmath.mpf(float(a)) ** mpmath.mpf(float(b)) for a, b in zip(x, y)]
        assert worst(out, want) <= 2.1


@pytest.mark.parametrize("name", ["fmod", "remainder"])
@pytest.mark.parametrize("spread", [0.5, 12, 27, 80])
def test_remainders_are_exact(name, spread):
    """Quotients near whole numbers and halves, large ones and subnormal divisors among them."""
    rng = np.random.default_rng(4)
    y = np.exp(rng.uniform(-90, 88, SIZE)).astype(np.float32)
    with np.errstate(all="ignore"):
        x = (y * np.exp(rng.uniform(-spread, spread, SIZE))).astype(np.float32)
        whole = np.round(rng.uniform(0, 9, SIZE)) + rng.choice([0, 0.5, 1e-7, -1e-7], SIZE)
        x[::2] = (y * whole)[::2].astype(np.float32)
    x *= rng.choice([-1, 1], SIZE).astype(np.float32)
    x[~np.isfinite(x)] = 1.0
    y[:4], x[:4] = [1e-45, 3e38, 3.4e38, 1e-40], [3e38, 3.4e38, 2e38, 1.5e-40]
    out = np.zeros_like(x)
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    fn = getattr(libdevice, name)
    Compiled(apply2_kernel, signature, {"F": fn, "N": SIZE}).run(x, y, out)
    exact = math.fmod if name == "fmod" else math.remainder
    want = [exact(float(a), float(b)) for a, b in zip(x, y)]
    np.testing.assert_array_equal(out, np.array(want, np.float32))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(want))


@tessera.jit
def apply3_kernel(x, y, z, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@pytest.mark.parametrize("direction", ["rz", "rd", "ru"])
@pytest.mark.parametrize("function", DIRECTED)
def test_one_instruction_rounds_in_a_direction(function, direction):
    kernels = [apply_kernel, apply2_kernel, apply3_kernel]
    rng, count = np.random.default_rng(5), DIRECTED[function]
    args = [np.exp(rng.uniform(-40, 40, 64)).astype(np.float32) for _ in range(count)]
    out = np.zeros_like(args[0])
    names = [*"xyz"[:count], "out"]
    signature = dict.fromkeys(names, "*fp32") | {"F": C, "N": C}
    constants = {"F": getattr(libdevice, f"{function}_{direction}"), "N": 64}
    kernel = Compiled(kernels[count - 1], signature, constants, num_warps=1)
    assert kernel.count(rf"{function}\.{PTX_DIRECTIONS[direction]}\.f32") == 2
    kernel.run(*args, out)
    np.testing.assert_array_equal(out, directed(function, direction, *args))


@tessera.jit
def divide_kernel(x, y, out, ROWS: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    tl.store(out + at, tl.load(x + at) / tl.load(y + i)[:, None])


def test_a_shared_divisor_has_one_reciprocal():
    """Quotients are those of a division of each element, to the bits of its approximation; also where the reciprocal
    alone would leave the range."""
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "ROWS": C, "N": C}
    found = Compiled(divide_kernel, signature, {"ROWS": 32, "N": SIZE}, num_warps=4)
    assert found.count(r"div\.full") == 0
    assert 0 < found.count(r"rcp\.approx") <= 32
    x = np.tile(inputs("f4"), (32, 1))
    extremes = [1, -3, 7e-39, 1e-45, 1.1e-38, 2e38, -3e38, 9e37, 0, -0.0, *EDGES[4:9]]
    y = np.array([*extremes, *range(5, 22)], "f4")
    out = np.zeros_like(x)
    with np.errstate(all="ignore"):
        found.run(x, y, out)
        want = x / y[:, None]
    np.testing.assert_allclose(out, want, rtol=2.5e-7, atol=3e-45)


def test_a_divisor_of_its_own_is_divided_by():
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    found = Compiled(apply2_kernel, signature, {"F": quotient, "N": SIZE})
    assert found.count(r"div\.full") == found.count(r"ld\.global\.v4\.b32") * 2 > 0
    assert found.count(r"rcp\.approx") == 0


@tessera.jit
def quotient(x, y):
    return x / y


@tessera.jit
def truncate_kernel(x, signed, unsigned, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(signed + i, v.to(tl.int32))
    tl.store(unsigned + i, v.to(tl.uint32))


def test_floats_become_words_by_one_instruction():
    """It saturates and gives 0 for NaN by itself: nothing is compared."""
    edges = [
        0,
        -0.0,
        1.9,
        -1.9,
        np.nan,
        np.inf,
        -np.inf,
        3e9,
        -3e9,
        5e9,
        2**31 - 128,
        -(2.0**31),
        0.5,
        -0.5,
        1e-40,
        7,
    ]
    x = np.resize(np.array(edges, np.float32), 128)
    signed, unsigned = np.zeros(128, np.int32), np.zeros(128, np.uint32)
    signature = {"x": "*fp32", "signed": "*i32", "unsigned": "*u32", "N": C}
    kernel = Compiled(truncate_kernel, signature, {"N": 128})
    kernel.run(x, signed, unsigned)
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
    np.testing.assert_array_equal(signed, np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32))
    np.testing.assert_array_equal(unsigned, np.clip(whole, 0, 2**32 - 1).astype(np.uint32))
    assert kernel.count(r"cvt\.rzi\.[su]32\.f32") == 2
    assert kernel.count("setp") == 0


def _of_normals(name: str) -> Compiled:
    """A function of 512 positive numbers, four in a thread, on a GPU."""
    types = {"x": "*fp32", "out": "*fp32", "F": C, "N": C}
    return Compiled(apply_kernel, types, {"F": getattr(libdevice, name), "N": 512})


@pytest.mark.parametrize("name", ["erfinv", "erfcinv"])
def test_the_tail_of_an_inverse_is_branched_around(name):
    parts = re.split(r"\n\$L\w+:", _of_normals(name).ptx)
    assert "rsqrt" not in parts[0]
    assert sum("rsqrt" in part for part in parts) == 4


@pytest.mark.parametrize("name", ["cbrt", "rcbrt"])
def test_cube_roots_start_from_an_approximate_logarithm(name):
    found = _of_normals(name)
    assert found.count(r"lg2\.approx\.ftz") == found.count(r"ex2\.approx\.ftz") == 4
    assert found.count(r"mul\.(wide|hi)") <= 2  # of addresses


def test_edges_of_logarithms_are_one_choice():
    found = _of_normals("log1p")
    assert found.count(r"lg2\.approx\.ftz") == 4
    assert found.count(r"selp|slct") == 4


def test_far_remainders_take_two_steps_of_fp32():
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    found = Compiled(apply2_kernel, types, {"F": libdevice.fmod, "N": 512})
    assert found.count(r"cvt\.rni\.f32") == 2 * 4
    assert found.count(r"call\.uni") == 4, "only beyond quotients of 2^40"


def test_a_remainder_to_the_nearest_takes_one_branch():
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    found = Compiled(apply2_kernel, types, {"F": libdevice.remainder, "N": 512})
    parts = re.split(r"\n\$L\w+:", found.ptx.split(".entry")[1])
    usual = [part for part in parts if "fma.rn.f32" in part]
    assert len(usual) == 4
    assert not any("f64" in part or "cvt.rni" in part for part in usual)


@pytest.mark.parametrize("name", ["asinh", "acosh", "atanh"])
def test_inverse_hyperbolic_functions_have_no_quotient_and_one_choice(name):
    found = _of_normals(name)
    assert found.count(r"div\.") == 0
    assert found.count(r"lg2\.approx\.ftz") == 4
    assert found.count(r"selp|slct") == 4


@pytest.mark.parametrize("name", ["cyl_bessel_i0", "cyl_bessel_i1", "j0", "j1", "y0", "y1"])
def test_large_arguments_of_bessel_functions_are_branched_around(name):
    parts = re.split(r"\n\$L\w+:", _of_normals(name).ptx)
    assert "rsqrt" not in parts[0]
    assert sum("rsqrt" in part for part in parts) == 4


def test_large_sums_of_log1p_come_from_an_instruction():
    x = np.exp2(np.linspace(120, 127.99, SIZE)).astype(np.float32)
    out = np.zeros_like(x)
    p = "*fp32"
    Compiled(
        apply_kernel, {"x": p, "out": p, "F": C, "N": C}, {"F": libdevice.log1p, "N": SIZE}
    ).run(x, out)
    assert worst(out, [mpmath.log1p(float(v)) for v in x]) <= BOUNDS["log1p"][0]


def test_the_least_numbers_keep_their_sign_in_log1p():
    x = np.resize(np.array([0.0, -0.0, 1e-45, -1e-45], np.float32), 128)
    out = np.ones_like(x)
    p = "*fp32"
    Compiled(
        apply_kernel, {"x": p, "out": p, "F": C, "N": C}, {"F": libdevice.log1p, "N": 128}
    ).run(x, out)
    np.testing.assert_array_equal(out.view(np.int32), x.view(np.int32))
