"""Each row of the table of primitives has a meaning, and means on random lanes what the PTX manual says."""

# pyright: basic
from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera.backends.nvidia.primitives as p
from tessera.backends.nvidia.primitives import FAMILIES, PRIMITIVES
from tessera.backends.nvidia.primitives.lanes import from_raw, to_raw
from tessera.backends.nvidia.simulator.boxes import TensorMap
from tessera.backends.nvidia.simulator.machine import Machine
from tessera.backends.nvidia.simulator.memory import SHARED, Global
from tessera.backends.nvidia.simulator.program import program_of
from tessera.errors import OutOfBounds, SimulatedHazard
from tessera.interp.directed import FUNCTIONS as DIRECTED_FUNCTIONS
from tessera.ops import DIRECTED
from tessera.ops.trace import TRACE_HEADER, TRACE_UNIT

ROOT = Path(__file__).resolve().parents[2]
THREADS = 128
EMPTY = "define ptx_kernel void @k() nounwind {\nentry:\n  ret void\n}\n"
RNG = np.random.default_rng(11)
TRIED: set[str] = set()  # rows and families that a test here has run


class Lanes:
    """A block of 128 threads on which primitives can be run one by one."""

    def __init__(self, latency: str = "eager", shared: int = 16384, **arrays: np.ndarray) -> None:
        self.memory = Global()
        for x in arrays.values():
            self.memory.add(x.ctypes.data, x.ctypes.data + x.nbytes)
        self.m = Machine(
            program_of(EMPTY, "k", THREADS), self.memory, shared, THREADS, 1, latency, 0
        )
        self.m.step = self.m.program.steps[0]
        assert not [*self.m.run([], (2, 3, 4), (5, 6, 7))]
        self.m.on = np.ones(THREADS, bool)

    def __call__(self, row: p.Primitive, *args: Any) -> Any:
        TRIED.add(row.name)
        meaning: Any = row.meaning
        lanes = [self.lanes(a, t) for a, t in zip(args, row.operands, strict=True)]
        with np.errstate(all="ignore"):
            got = meaning(self.m, *lanes) if row.uses_machine else meaning(*lanes)
        return got[0] if isinstance(got, tuple) and len(got) == 1 else got

    def named(self, name: str, *args: Any) -> Any:
        TRIED.add(name)
        return self(PRIMITIVES[name], *args)

    def lanes(self, x: Any, type: str) -> Any:
        if isinstance(x, np.ndarray):
            return x
        return np.full(THREADS, x, np.float32 if type == "float" else np.uint64)


def every(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.uint64)


def at(offsets: Any) -> np.ndarray:
    """Addresses in shared memory."""
    return every(np.asarray(offsets) + SHARED)


# --- completeness ---------------------------------------------------------------------------------------------------
def used_in_the_lowering() -> tuple[set[str], set[str]]:
    """(rows, families) that NVIDIA's lowering names: "name" of `emit_primitive` and PRIMITIVES[...], p.family(...)."""
    rows, families = set(), set()
    for path in (ROOT / "tessera/backends/nvidia").glob("*.py"):
        text = path.read_text()
        rows |= set(re.findall(r'PRIMITIVES\["(\w+)"\]', text))
        rows |= set(re.findall(r"""emit_primitive\([\w.]+, ["'](\w+)["']""", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "p" and node.attr in FAMILIES:
                    families.add(node.attr)
    return rows, families


def test_the_lowering_writes_no_assembly_but_the_table() -> None:
    for path in (ROOT / "tessera/backends/nvidia").glob("*.py"):
        assert not re.search(r"\bw\.asm\(|\basm sideeffect", path.read_text()), path
    rows, families = used_in_the_lowering()
    assert rows <= PRIMITIVES.keys() and len(rows) > 15
    assert families <= FAMILIES.keys() and len(families) > 20


def test_every_row_has_a_meaning() -> None:
    assert [r.name for r in PRIMITIVES.values() if r.meaning is None] == []
    for name, make in SAMPLES.items():
        assert make().meaning is not None, name
    assert SAMPLES.keys() == FAMILIES.keys()


def operands_left_out(row: p.Primitive) -> list[int]:
    """Operands of inline PTX that its text does not name: the simulator runs the meaning and would not notice."""
    kinds = [c for c in row.constraints.split(",") if c and not c.startswith("~")]
    named = {int(n) for n in re.findall(r"\$\{?(\d+)", row.text)}
    return [i for i, c in enumerate(kinds) if not c.isdigit() and i not in named]


def test_the_text_names_each_operand() -> None:
    """A predicate that only the meaning knows is no predicate on a GPU."""
    rows = [*PRIMITIVES.values(), *(make() for make in SAMPLES.values())]
    inline = [r for r in rows if r.constraints and not r.text.startswith("llvm.")]
    assert len(inline) > 40
    left_out = {r.name: left for r in inline if (left := operands_left_out(r))}
    assert left_out.keys() <= {"wgmma_wait"}  # passes accumulators through, to order what uses them


def test_a_note_makes_the_row_again() -> None:
    for make in SAMPLES.values():
        row = make()
        call: Any = ast.parse(row.note.removeprefix(p.NOTE), mode="eval").body
        args = [ast.literal_eval(a) for a in call.args]
        again = FAMILIES[call.func.id](
            *args, **{k.arg: ast.literal_eval(k.value) for k in call.keywords}
        )
        assert (again.text, again.constraints, again.operands) == (
            row.text,
            row.constraints,
            row.operands,
        )


SAMPLES: dict[str, Any] = {
    "load_global": lambda: p.load_global(".global", 32, 2, "i32", 8, True),
    "store_global": lambda: p.store_global(".global", 32, 2, "i32", 8, True),
    "load_shared": lambda: p.load_shared(32, 4, "i32", 16),
    "store_shared": lambda: p.store_shared(16, 2, "i16", 4, True),
    "atomic": lambda: p.atomic(".relaxed.gpu.global", "add.u32", "i32", 0, 1, True),
    "add_vector": lambda: p.add_vector("gpu", "f32", "float", 0, 4),
    "atomic_shared_add": lambda: p.atomic_shared_add(0),
    "trace_begin": lambda: p.trace_begin(77),
    "trace_record": lambda: p.trace_record(3, 1),
    "async_wait": lambda: p.async_wait(0),
    "async_copy": lambda: p.async_copy(16, "", 0, 0, True),
    "async_copy_where": lambda: p.async_copy_where(4, 0, 0),
    "load_matrix": lambda: p.load_matrix(4, True, 0),
    "store_matrix": lambda: p.store_matrix(2, False, 0),
    "memory_fence": lambda: p.memory_fence("gpu"),
    "named_barrier_sync": lambda: p.named_barrier_sync(8, 128),
    "named_barrier_arrive": lambda: p.named_barrier_arrive(8, 256),
    "group_barrier": lambda: p.group_barrier(128),
    "barrier_of": lambda: p.barrier_of(0, 1, 256, True),
    "mbarrier_init": lambda: p.mbarrier_init(4),
    "mbarrier_expect": lambda: p.mbarrier_expect(64),
    "set_registers": lambda: p.set_registers(True, 232),
    "bulk_wait": lambda: p.bulk_wait(0, True),
    "tensor_load": lambda: p.tensor_load(2),
    "tensor_store": lambda: p.tensor_store(2, "add"),
    "mma": lambda: p.mma("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "float", (4, 2, 4), "i32"),
    "wgmma": lambda: p.wgmma(
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16", 8, 4, ((0, 0, True),), False, False,
        ", 1, 1, 0, 0", True,
    ),
    "wgmma_wait": lambda: p.wgmma_wait(0, 4, "float", 0),
}  # fmt: skip


# --- places and exchange ----------------------------------------------------------------------------------------------
def test_places() -> None:
    lanes = Lanes()
    assert (lanes.named("thread_index") == np.arange(THREADS)).all()
    for i, axis in enumerate("xyz"):
        assert (lanes.named(f"program_id_{axis}") == 2 + i).all()
        assert (lanes.named(f"num_programs_{axis}") == 5 + i).all()
    assert (lanes.named("cluster_id") == 2).all() and (lanes.named("num_clusters") == 5).all()
    assert (lanes.named("cta_rank") == 0).all() and (lanes.named("smid") == 0).all()
    first, second = lanes.named("globaltimer"), lanes.named("globaltimer")
    assert (second > first).all()
    assert (lanes.named("clock") == lanes.m.clock + lanes.m.number - lanes.m.segment).all()
    assert (lanes.named("elect") == (np.arange(THREADS) % 32 == 0)).all()


@pytest.mark.parametrize("mask", [1, 5, 31])
def test_shuffles(mask: int) -> None:
    lanes, x = Lanes(), every(RNG.integers(0, 2**32, THREADS))
    got = lanes.named("shuffle_xor", 2**32 - 1, x, mask, 31)
    for t in range(THREADS):
        assert got[t] == x[t - t % 32 + (t % 32 ^ mask)]
    got = lanes.named("shuffle_index", 2**32 - 1, x, mask, 31)
    assert (got == np.repeat(x[mask::32], 32)).all()
    lanes.m.on[5] = False
    with pytest.raises(SimulatedHazard, match="missing"):
        lanes.named("shuffle_xor", 2**32 - 1, x, mask, 31)


# --- arithmetic -------------------------------------------------------------------------------------------------------
FUNCTIONS = {
    "exp2.float": np.exp2, "rsqrt.float": lambda x: x**-0.5, "sqrt.float": np.sqrt, "sqrt_rn.float": np.sqrt,
    "sqrt_rn.double": np.sqrt, "rcp.float": lambda x: 1 / x, "fast_log2.float": np.log2, "normal_log2.float": np.log2,
    "fast_sin.float": np.sin, "fast_cos.float": np.cos,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = np.abs(RNG.standard_normal(THREADS)) + 0.01
    x = x.astype(np.float64 if "double" in name else np.float32)
    got = Lanes().named(name, x)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, FUNCTIONS[name](x.astype(np.float64)), rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("suffix", ["float", "double"])
@pytest.mark.parametrize("function", DIRECTED)
def test_rounding_in_a_direction(function: str, suffix: str) -> None:
    kind, lanes = np.float64 if suffix == "double" else np.float32, Lanes()
    xs = [np.abs(RNG.standard_normal(THREADS)).astype(kind) for _ in range(DIRECTED[function])]
    down, up, inward = (lanes.named(f"{function}_{d}.{suffix}", *xs) for d in ("rd", "ru", "rz"))
    assert (inward == np.where(down >= 0, down, up)).all()
    assert (up == np.nextafter(down, kind(np.inf))).any(), "some results are inexact"
    near = DIRECTED_FUNCTIONS[function][0](*xs) if function != "fma" else down
    assert ((near == down) | (near == up)).all()


def test_division_and_pairs() -> None:
    lanes = Lanes()
    x, y = (RNG.standard_normal(THREADS).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(lanes.named("div.float", x, y), x / y)
    pair = lanes.named("pair.half", x, y)  # the first one is the high half
    np.testing.assert_array_equal(pair, np.stack([y, x], 1).astype(np.float16))
    pair = lanes.named("pair.bfloat", x, y)
    assert (pair.view(np.uint32) & 0xFFFF == 0).all()
    np.testing.assert_allclose(pair, np.stack([y, x], 1), rtol=2**-8)


def test_truncation_saturates_and_gives_0_for_nan() -> None:
    x = np.resize(np.array([1.9, -1.9, np.nan, 3e9, -3e9, np.inf, -np.inf, 7], np.float32), THREADS)
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
    signed, unsigned = (Lanes().named(f"truncate_{k}.float", x) for k in "su")
    want = np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)
    np.testing.assert_array_equal(np.asarray(signed).astype(np.uint32), want)
    want = np.clip(whole, 0, 2**32 - 1).astype(np.uint32)
    np.testing.assert_array_equal(np.asarray(unsigned).astype(np.uint32), want)


@pytest.mark.parametrize(("kind", "low", "high"), [("s", -(2**63), 2**63 - 1), ("u", 0, 2**64 - 1)])
def test_truncation_to_64_bits(kind: str, low: int, high: int) -> None:
    """It saturates; NaN gives the sign bit."""
    values = [1.9, -1.9, 2.0**63, -(2.0**63), 3e30, -3e30, 3e18, 7]
    x = np.resize(np.array([*values, np.inf, -np.inf, np.nan], np.float32), THREADS)
    edges = [min(max(int(np.float32(v)), low), high) % 2**64 for v in values]
    want = [*edges, high % 2**64, low % 2**64, 1 << 63]
    got = np.asarray(Lanes().named(f"truncate_{kind}64.float", x)).astype(np.uint64)
    np.testing.assert_array_equal(got, np.resize(np.array(want, np.uint64), THREADS))


@pytest.mark.parametrize(
    ("name", "bits", "source"),
    [("to_fp16_rtz.float", 10, "f4"), ("to_bf16_rtz.float", 7, "f4"), ("to_fp32_rtz.double", 23, "f8"),
     ("to_fp16_rtz.double", 10, "f8")],
)  # fmt: skip
def test_rounding_toward_zero(name: str, bits: int, source: str) -> None:
    x = RNG.standard_normal(THREADS).astype(source)
    got = Lanes().named(name, x).astype(np.float64)
    fraction, exponent = np.frexp(x.astype(np.float64))
    want = np.ldexp(np.trunc(fraction * 2.0 ** (bits + 1)), exponent - bits - 1)
    np.testing.assert_array_equal(got, want)


def test_sign_of_halves() -> None:
    bits = every(RNG.integers(0, 1 << 16, THREADS))
    np.testing.assert_array_equal(Lanes().named("flip_sign.i16", bits), bits ^ np.uint64(0x8000))


@pytest.mark.parametrize("bits", [32, 64])
def test_shifts_by_any_amount(bits: int) -> None:
    values = np.array([0, 1, (1 << bits) - 1, 1 << (bits - 1), 0x12345678], np.uint64)
    x = np.resize(values, THREADS)
    amount = np.resize(np.array([0, 1, 31, 32, 63, 64, 0xFFFFFFFF], np.uint64), THREADS)
    for name in ("shl", "lshr", "ashr"):
        want: list[int] = []
        for value, n in zip(x.tolist(), amount.tolist(), strict=True):
            number = value - (1 << bits) if name == "ashr" and value >> (bits - 1) else value
            by = min(n, bits)
            want.append((number << by if name == "shl" else number >> by) & ((1 << bits) - 1))
        got = Lanes().named(f"{name}.i{bits}", x, amount)
        np.testing.assert_array_equal(got, np.array(want, np.uint64))


def test_quotients_of_integers() -> None:
    x = np.resize(np.array([0, 7, -7, 100, -(2**31), 2**31 - 1], np.int64), THREADS)
    y = np.resize(np.array([2, -2, 7, -1, 3], np.int64), THREADS)
    top = np.uint64(0xFFFFFFFF)
    raw = x.view(np.uint64) & top, y.view(np.uint64) & top
    want = np.array(
        [int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x, y)]
    )
    got = Lanes().named("sdiv.i32", *raw)
    np.testing.assert_array_equal(got, want.astype(np.int64).view(np.uint64) & top)
    np.testing.assert_array_equal(Lanes().named("udiv.i32", *raw), raw[0] // raw[1])


def test_quotients_of_64_bits() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-(2**63), 2**63, THREADS)
    y = rng.integers(1, 2**40, THREADS) * rng.choice([-1, 1], THREADS)
    raw = x.view(np.uint64), y.view(np.uint64)
    got = Lanes().named("sdiv.i64", *raw).view(np.int64)
    wanted = [
        abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x.tolist(), y.tolist())
    ]
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(Lanes().named("udiv.i64", *raw), raw[0] // raw[1])


@pytest.mark.parametrize("name", ["add", "min", "max", "umin", "umax", "and", "or", "xor"])
def test_words_reduced_over_a_warp(name: str) -> None:
    x = np.random.default_rng(4).integers(0, 2**32, THREADS, dtype=np.uint64)
    lanes = Lanes()
    got = lanes.named(f"reduce_{name}", x, 2**32 - 1)
    words = x.astype(np.uint32).reshape(-1, 32)
    if name in ("min", "max"):
        words = words.view(np.int32)
    combine = {
        "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "min": np.minimum, "umin": np.minimum, "max": np.maximum, "umax": np.maximum,
    }[name]  # fmt: skip
    wanted = np.repeat(combine.reduce(words, axis=1, dtype=words.dtype), 32)
    np.testing.assert_array_equal(got.astype(np.uint32).view(wanted.dtype), wanted)
    lanes.m.on = np.arange(THREADS) != 5
    with pytest.raises(SimulatedHazard, match="threads of a warp missing"):
        lanes.named(f"reduce_{name}", x, 2**32 - 1)


def test_wide_products() -> None:
    x = np.resize(np.array([0, 7, -7, -(2**31), 2**31 - 1], np.int64), THREADS)
    y = np.resize(np.array([2, -2, -(2**31), 2**31 - 1, -1, 1], np.int64), THREADS)
    got = Lanes().named(
        "mul_wide.i32", *(v.view(np.uint64) & np.uint64(0xFFFFFFFF) for v in (x, y))
    )
    np.testing.assert_array_equal(got.view(np.int64), x * y)


@pytest.mark.parametrize(("name", "tie"), [("to_tf32", 0x3F802000), ("to_tf32_even", 0x3F800000)])
def test_tf32(name: str, tie: int) -> None:
    x = RNG.standard_normal(THREADS).astype(np.float32)
    x[0], x[1] = np.uint32(0x3F801000).view(np.float32), np.inf
    got = Lanes().named(name, x)
    assert (got.view(np.uint32) & 0x1FFF == 0).all()
    assert got[0].view(np.uint32) == tie
    assert got[1] == np.inf
    near = np.isfinite(x)
    assert (np.abs(got[near] - x[near]) <= np.spacing(np.abs(x[near])) * 2**12).all()


def test_tf32_keeps_nan() -> None:
    x = np.full(THREADS, 0x7FFFFFFF, np.uint32).view(np.float32)
    assert np.isnan(Lanes().named("to_tf32_even", x)).all()


@pytest.mark.parametrize(
    ("name", "mantissa", "most"), [("fp8e4nv", 3, 448.0), ("fp8e5", 2, 57344.0)]
)
def test_float8(name: str, mantissa: int, most: float) -> None:
    lanes = Lanes()
    x, y = (RNG.standard_normal(THREADS).astype(np.float32) * 4 for _ in range(2))
    x[:2] = [1e9, -1e9]
    both = lanes.named(f"from_{name}", lanes.named(f"to_{name}", x, y))
    high = from_raw("half", both >> np.uint64(16)).astype(np.float64)
    low = from_raw("half", both & np.uint64(0xFFFF)).astype(np.float64)
    assert list(high[:2]) == [most, -most]
    for got, given in ((high[2:], x[2:]), (low, y)):
        normal = np.abs(given) > 0.05
        assert (np.abs(got - given)[normal] <= 2.0 ** -(mantissa + 1) * np.abs(given)[normal]).all()


# --- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("bits", "count", "type"),
    [(8, 1, "i16"), (16, 2, "i16"), (32, 4, "float"), (64, 2, "i64"), (32, 1, "i32")],
)
def test_global_memory(bits: int, count: int, type: str) -> None:
    size = bits // 8 * count
    data = RNG.integers(0, 200, THREADS * size + 64).astype(np.uint8)
    start = (-data.ctypes.data) % 16
    x, out = data[start : start + THREADS * size], np.zeros(THREADS * size + 16, np.uint8)
    lanes = Lanes(data=data, out=out)
    where = every(RNG.permutation(THREADS) * size)
    on = RNG.integers(0, 2, THREADS).astype(np.uint64)
    other = [lanes.lanes(7, type)] * count
    words = lanes(
        p.load_global(".global", bits, count, type, 0, True), *other, where + np.uint64(x.ctypes.data), on
    )  # fmt: skip
    words = words if isinstance(words, tuple) else (words,)
    words = [words] if not isinstance(words, (tuple, list)) else words
    raw = np.stack([to_raw(type, w) for w in words], 1)
    units = x.view(f"u{bits // 8}")
    for t in range(THREADS):
        want = (
            units[int(where[t]) * 8 // bits :][:count]
            if on[t]
            else to_raw(type, other[0][:1]).repeat(count)
        )
        assert (raw[t] == want).all()
    begin = (-out.ctypes.data) % 16
    lanes(
        p.store_global(".global", bits, count, type, 0, True), where + np.uint64(out.ctypes.data + begin), *words, on
    )  # fmt: skip
    there = out[begin:][: THREADS * size].reshape(-1, size)[(where // np.uint64(size)).astype(int)]
    assert (
        there[on == 1] == x.reshape(-1, size)[(where // np.uint64(size)).astype(int)][on == 1]
    ).all()
    assert (there[on == 0] == 0).all()


def test_addresses_that_are_wrong() -> None:
    x = np.zeros(64, np.uint32)
    lanes = Lanes(x=x)
    load = p.load_global(".global", 32, 2, "i32", 0, False)
    with pytest.raises(OutOfBounds):
        lanes(load, every(x.ctypes.data + 8 * np.arange(THREADS)))
    with pytest.raises(SimulatedHazard, match="misaligned"):
        lanes(load, every(np.full(THREADS, x.ctypes.data + 4)))
    with pytest.raises(OutOfBounds):
        lanes(p.load_shared(32, 1, "i32", 0), at(np.full(THREADS, 16384)))
    with pytest.raises(SimulatedHazard, match="misaligned"):
        lanes(p.load_shared(32, 1, "i32", 2), at(np.zeros(THREADS)))


@pytest.mark.parametrize(
    ("bits", "count", "type"), [(8, 1, "i16"), (16, 1, "half"), (32, 4, "float"), (64, 2, "double")]
)
def test_shared_memory(bits: int, count: int, type: str) -> None:
    lanes, size = Lanes(), bits // 8 * count
    where = at(RNG.permutation(THREADS) * size)
    values = [
        from_raw(type, every(RNG.integers(0, 2 ** (bits - 2), THREADS))) for _ in range(count)
    ]
    lanes(p.store_shared(bits, count, type, 0, False), where, *values)
    got = lanes(p.load_shared(bits, count, type, 0), where)
    for x, y in zip(values, got if isinstance(got, tuple) else (got,), strict=True):
        np.testing.assert_array_equal(x, y)


def test_memory_that_nobody_has_written() -> None:
    lanes = Lanes()
    got = lanes(p.load_shared(32, 1, "float", 0), at(4 * np.arange(THREADS)))
    assert np.isnan(got).all() and lanes.m.shared.unknown


ATOMICS = {
    "add.u32": lambda a, b: (a + b) % 2**32, "max.s32": None, "min.u32": min, "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b, "xor.b32": lambda a, b: a ^ b, "exch.b32": lambda a, b: b,
}  # fmt: skip


@pytest.mark.parametrize("kind", ATOMICS)
def test_atomics(kind: str) -> None:
    x = RNG.integers(0, 2**32, 8).astype(np.uint32)
    want, values = [int(v) for v in x], every(RNG.integers(0, 2**32, THREADS))
    lanes, which, on = Lanes(x=x), RNG.integers(0, 8, THREADS), RNG.integers(0, 2, THREADS)
    row = p.atomic(".relaxed.gpu.global", kind, "i32", 0, 1, True)
    old = lanes(row, 0, every(x.ctypes.data + 4 * which), values, every(on))
    signed = lambda v: v - (v >> 31 << 32)
    how = ATOMICS[kind] or (lambda a, b: max(a, b, key=signed))
    for t in range(THREADS):  # in the order of threads
        if on[t]:
            assert old[t] == want[which[t]]
            want[which[t]] = how(want[which[t]], int(values[t]))
    assert list(x) == want


def test_sums_of_floats_and_compare() -> None:
    x = np.zeros((THREADS, 4), np.float32)
    lanes = Lanes(x=x)
    given = [RNG.standard_normal(THREADS).astype(np.float32) for _ in range(4)]
    where = every(x.ctypes.data + 16 * np.arange(THREADS))
    for _ in range(2):
        lanes(p.add_vector("gpu", "f32", "float", 0, 4), where, *given, 1)
    np.testing.assert_allclose(x, 2 * np.stack(given, 1))
    lock = np.zeros(1, np.uint64)
    lanes = Lanes(lock=lock)
    row = p.atomic(".acquire.gpu.global", "cas.b64", "i64", 0, 2, True)
    old = lanes(
        row, 0, np.full(THREADS, lock.ctypes.data, np.uint64), 0, every(1 + np.arange(THREADS)), 1
    )
    assert lock[0] == 1 and old[0] == 0 and (old[1:] == 1).all()
    lanes(p.memory_fence("gpu"))


def test_sums_in_shared_memory() -> None:
    lanes = Lanes()
    lanes(
        p.store_shared(32, 1, "i32", 0, True),
        at(4 * np.arange(THREADS)),
        0,
        every(np.arange(THREADS) < 8),
    )
    which, by, on = (
        RNG.integers(0, 8, THREADS),
        RNG.integers(0, 99, THREADS),
        RNG.integers(0, 2, THREADS),
    )
    lanes(p.atomic_shared_add(0), at(4 * which), every(by), every(on))
    got = lanes(p.load_shared(32, 1, "i32", 0), at(4 * (np.arange(THREADS) % 8)))
    assert list(got[:8]) == [(by * on)[which == i].sum() for i in range(8)]


# --- matrices ---------------------------------------------------------------------------------------------------------
def fill(lanes: Lanes, data: np.ndarray) -> None:
    lanes.m.shared.bytes[: data.nbytes] = data.view(np.uint8).ravel()
    lanes.m.shared.known[: data.nbytes] = True


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_to_and_from_shared_memory(count: int, trans: bool) -> None:
    lanes = Lanes()
    data = RNG.integers(0, 2**16, (4, count, 8, 8)).astype(np.uint16)  # by warp
    fill(lanes, data)
    where = np.zeros(THREADS, np.int64)
    for w in range(4):
        for lane in range(8 * count):
            where[32 * w + lane] = ((w * count + lane // 8) * 8 + lane % 8) * 16
    got = lanes(p.load_matrix(count, trans, 0), at(where))
    got = got if isinstance(got, tuple) else (got,)
    for w, k, lane in np.ndindex(4, count, 32):
        r, c = lane // 4, 2 * (lane % 4)
        low, high = (data[w, k, c, r], data[w, k, c + 1, r]) if trans else data[w, k, r, c : c + 2]
        assert got[k][32 * w + lane] == int(low) | int(high) << 16
    lanes.m.shared.bytes[: data.nbytes] = 0
    lanes(p.store_matrix(count, trans, 0), at(where), *got)
    assert (lanes.m.shared.bytes[: data.nbytes].view(np.uint16) == data.ravel()).all()


MMAS = {
    "m16n8k16.row.col.f32.f16.f16.f32": (16, 16, 16, "f2"),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (16, 8, 32, "f4"),
    "m16n8k32.row.col.s32.s8.s8.s32": (16, 32, 8, "i1"),
    "m8n8k4.row.col.f64.f64.f64.f64": (8, 4, 64, "f8"),
}


@pytest.mark.parametrize("name", MMAS)
def test_products_of_warps(name: str) -> None:
    """Fragments are put together from the tables of the PTX manual, element by element."""
    m, k, bits, dtype = MMAS[name]
    a, b = (RNG.integers(-4, 5, s).astype(dtype) for s in ((4, m, k), (4, k, 8)))
    per, kind = max(1, 32 // bits), {64: "double", 32: "float"}.get(bits, "i32")
    groups = m // 8

    def word(elements: list[Any]) -> Any:
        if bits >= 32:
            return elements[0]
        return int.from_bytes(np.array(elements, dtype).tobytes(), "little")

    counts = (k * groups * 8 // 32 // per, k * 8 // 32 // per)
    words = [
        [np.zeros(THREADS, dtype if bits >= 32 else np.uint64) for _ in range(n)] for n in counts
    ]
    for w, lane in np.ndindex(4, 32):
        g, t = lane // 4, lane % 4
        for i in range(counts[0]):
            row, column = g + 8 * (i % groups), per * t + 4 * per * (i // groups)
            words[0][i][32 * w + lane] = word([a[w, row, column + e] for e in range(per)])
        for i in range(counts[1]):
            words[1][i][32 * w + lane] = word(
                [b[w, per * t + 4 * per * i + e, g] for e in range(per)]
            )
    integer = dtype == "i1"
    acc_type = "i32" if integer else "double" if bits == 64 else "float"
    acc = [
        np.full(THREADS, 3, np.uint64 if integer else "f8" if bits == 64 else "f4")
        for _ in range(2 * groups)
    ]
    row = p.mma(f"mma.sync.aligned.{name}", acc_type, (*counts, 2 * groups), kind)
    got = Lanes()(row, *acc, *words[0], *words[1])
    want = a.astype(np.float64) @ b.astype(np.float64) + 3
    for w, lane, i in np.ndindex(4, 32, 2 * groups):
        value = got[i][32 * w + lane]
        value = int(np.uint32(value).view(np.int32)) if integer else value
        assert value == want[w, lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]


@pytest.mark.parametrize("held", [False, True])
def test_products_of_warpgroups(held: bool) -> None:
    """Two steps along K of fp16 operands in boxes of 64 bytes a row, swizzled; A perhaps in registers."""
    n, k = 16, 32
    a, b = (RNG.integers(-4, 5, s).astype(np.float16) for s in ((64, k), (n, k)))
    lanes = Lanes("late")
    base = {"a": 1024, "b": 8192}
    for name, x in (("a", a), ("b", b)):
        for r, c in np.ndindex(*x.shape):
            place = base[name] + r * 64 + c * 2 + SHARED
            place ^= (place >> 7 & 3) << 4
            lanes.m.shared.bytes[place - SHARED : place - SHARED + 2] = x[r, c : c + 1].view(
                np.uint8
            )
    lanes.m.shared.known[:] = True
    high = (16 >> 4) << 16 | (8 * 64 >> 4) << 32 | 2 << 62
    da, db = ((base[x] + SHARED >> 4) | high for x in "ab")
    words = []
    for step in range(2):
        for i in range(4):
            x = np.zeros(THREADS, np.uint64)
            for t in range(THREADS):
                row, c = (
                    16 * (t // 32) + t % 32 // 4 + 8 * (i % 2),
                    16 * step + 2 * (t % 4) + 8 * (i // 2),
                )
                x[t] = int(a[row, c : c + 2].view(np.uint32)[0])
            words.append(x)
    row = p.wgmma(
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16", n, n // 2, ((0, 0, True), (2, 2, True)), held,
        False, ", 1, 1, 0" if held else ", 1, 1, 0, 0", True,
    )  # fmt: skip
    acc = [np.full(THREADS, 5, np.float32)] * (n // 2)
    operands = (
        [*words, np.full(THREADS, db, np.uint64)]
        if held
        else [np.full(THREADS, x, np.uint64) for x in (da, db)]
    )
    got = lanes(row, *acc, *operands)
    assert np.isnan(got[0]).all()  # nobody may look yet
    done = lanes(p.wgmma_wait(0, n // 2, "float", 0), *got)
    want = a.astype(np.float64) @ b.T.astype(np.float64) + 5
    for t, i in np.ndindex(THREADS, n // 2):
        row_of, column = (
            16 * (t // 32) + t % 32 // 4 + 8 * (i % 4 // 2),
            8 * (i // 4) + 2 * (t % 4) + i % 2,
        )
        assert done[i][t] == want[row_of, column]


def test_results_that_look_like_registers_of_a_product_under_way() -> None:
    """Registers hold a mark while their product runs; bits of a result may be those of another product's mark."""
    lanes, n = Lanes("late"), 8
    lanes.m.shared.bytes[:] = 0
    lanes.m.shared.known[:] = True
    row = p.wgmma(
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16", n, 4, ((0, 0, True),), False, False,
        ", 1, 1, 0, 0", True,
    )  # fmt: skip
    da, db = ((base + SHARED >> 4) | 1 << 16 | 16 << 32 | 3 << 62 for base in (1024, 8192))
    second = lanes.m.mmas.number + 1
    given = np.full(THREADS, second << 9 | 300, np.uint32).view(np.float32)
    ones = np.ones(THREADS, np.float32)
    first = lanes(row, *[given] * 4, da, db)
    other = lanes(row, *[ones] * 4, da, db)
    done = lanes(p.wgmma_wait(0, 8, "float", 0), *first, *other)
    for got, want in zip(done, [given] * 4 + [ones] * 4, strict=True):
        np.testing.assert_array_equal(got, want)


# --- copies -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bytes", [4, 8, 16])
def test_copies_by_threads_come_when_they_are_waited_for(bytes: int) -> None:
    x = RNG.integers(0, 256, THREADS * 16).astype(np.uint8)
    lanes = Lanes("late", x=x)
    order, size = RNG.permutation(THREADS), RNG.integers(0, 2, THREADS) * bytes
    to, source = at(bytes * order), every(x.ctypes.data + bytes * np.arange(THREADS))
    lanes(p.async_copy(bytes, "", 0, 0, True), to, source, every(size))
    lanes.named("async_commit")
    lanes(p.async_copy_where(bytes, 8192, 0), to, source, every(size > 0))
    lanes.named("async_commit")
    load = p.load_shared(32, 1, "i32", 0)
    with pytest.raises(SimulatedHazard, match="under way"):
        lanes(load, to)
    lanes(p.async_wait(1))
    got = lanes(load, to)
    want = x.view(np.uint32)[bytes // 4 * np.arange(THREADS)]
    assert (got == np.where(size > 0, want, 0)).all()
    with pytest.raises(SimulatedHazard, match="under way"):
        lanes(p.load_shared(32, 1, "i32", 8192), to)
    lanes(p.async_wait(0))
    got = lanes(p.load_shared(32, 1, "i32", 8192), to)
    assert (got == np.where(size > 0, want, 0xFFFFFFFF)).all()  # nothing was written elsewhere


def test_counters_of_copies_and_arrivals() -> None:
    x = np.arange(THREADS, dtype=np.uint32)
    lanes, bar = Lanes("late", x=x), at(np.full(THREADS, 4096))
    lanes.m.on = np.arange(THREADS) == 0
    lanes(p.mbarrier_init(THREADS), bar)
    lanes.named("mbarrier_fence")
    lanes.m.on = np.ones(THREADS, bool)
    source = every(x.ctypes.data + 4 * np.arange(THREADS))
    lanes(p.async_copy(4, "", 0, 0, False), at(4 * np.arange(THREADS)), source)
    lanes.named("mbarrier_arrive_after_copies", bar)
    lanes.named("mbarrier_wait", bar, 0)
    assert all(lanes.m.blocked)
    while any(lanes.m.blocked):
        assert lanes.m.way.land_one()
    assert (lanes(p.load_shared(32, 1, "i32", 0), at(4 * np.arange(THREADS))) == x).all()
    lanes.named("mbarrier_wait", bar, 0)
    assert not any(lanes.m.blocked)


def test_too_many_arrivals() -> None:
    lanes, bar = Lanes(), at(np.full(THREADS, 64))
    lanes.m.on = np.arange(THREADS) == 0
    lanes(p.mbarrier_init(1), bar)
    lanes(p.mbarrier_expect(64), bar)
    with pytest.raises(SimulatedHazard, match="too many"):
        lanes.named("mbarrier_arrive", bar)


def test_mbarriers() -> None:
    lanes, bar = Lanes(), at(np.full(THREADS, 64))
    one = np.arange(THREADS) == 0
    with pytest.raises(SimulatedHazard, match="no mbarrier"):
        lanes.named("mbarrier_arrive", bar)
    lanes.m.on = one
    lanes(p.mbarrier_init(4), bar)
    lanes.m.on = np.ones(THREADS, bool)
    assert (lanes.named("mbarrier_try", bar, 1) == 1).all() and not any(lanes.m.blocked)
    lanes.named("mbarrier_try", bar, 0)
    assert all(lanes.m.blocked)
    lanes.named("mbarrier_arrive_of_warp", bar, every(np.arange(THREADS) % 32))
    assert not any(lanes.m.blocked)
    lanes.m.on = one
    for _ in range(3):
        lanes.named("mbarrier_arrive_in", bar, 0)
    lanes(p.mbarrier_expect(64), bar)
    lanes.named("mbarrier_wait", bar, 1)
    assert lanes.m.blocked[0] and not lanes.m.blocked[1]
    lanes.m.mbarriers.bytes(int(bar[0]), 64)
    assert not lanes.m.blocked[0]
    lanes.named("mbarrier_inval", bar)
    assert not lanes.m.mbarriers.states


def test_named_barriers() -> None:
    lanes = Lanes()
    warps = np.arange(THREADS) // 32
    lanes.m.on = warps == 0
    lanes(p.named_barrier_sync(8, 64))
    assert lanes.m.blocked[0]
    lanes.m.on = warps == 1
    lanes(p.named_barrier_arrive(8, 64))
    assert not lanes.m.blocked[0]
    lanes.m.on = warps < 2
    lanes(p.group_barrier(128), 3)
    assert lanes.m.blocked[0] and lanes.m.blocked[1]
    lanes.m.on = warps >= 2
    lanes(p.barrier_of(1, 3, 128, False), every(warps >= 2))
    assert not any(lanes.m.blocked)
    for w in range(4):
        assert w == 0 or lanes.m.blocked[0]
        lanes.m.on = warps == w
        lanes.named("barrier")
    assert not any(lanes.m.blocked)
    for w in range(4):
        lanes.m.on = warps == w
        lanes.named("cluster_barrier")
    assert not any(lanes.m.blocked)
    lanes.m.on = np.arange(THREADS) < 40
    for name in ("barrier", "warp_sync"):
        with pytest.raises(SimulatedHazard, match="missing"):
            lanes.named(name)
    with pytest.raises(SimulatedHazard, match="missing"):
        lanes(p.set_registers(True, 232))


def test_instructions_that_change_nothing() -> None:
    lanes = Lanes()
    for name in (
        "grid_wait",
        "grid_launch_dependents",
        "proxy_fence",
        "proxy_fence_all",
        "bulk_commit",
    ):
        lanes.named(name)
    lanes.named("prefetch_map", 0)
    lanes.named("await_word", 1, at(np.zeros(THREADS)))
    with pytest.raises(AssertionError, match="stopped"):
        lanes.named("trap")


def boxes(lanes: Lanes, x: np.ndarray, box: tuple[int, int], swizzle: int) -> None:
    words = [("const", v) for v in (x.ctypes.data, *x.shape, x.shape[1], 1)]
    lanes.m.tensor_maps = [TensorMap("fp16", "zero", box, swizzle, words, [])]


@pytest.mark.parametrize("swizzle", [0, 64])
def test_boxes(swizzle: int) -> None:
    """A box that reaches beyond the tensor comes with zeros, when the barrier is waited for; and goes back without."""
    x, out = RNG.standard_normal((20, 64)).astype(np.float16), np.zeros((20, 64), np.float16)
    lanes, bar, one = (
        Lanes("late", x=x, out=out),
        at(np.full(THREADS, 8192)),
        np.arange(THREADS) == 0,
    )
    boxes(lanes, x, (8, 32), swizzle)
    lanes.m.on = one
    lanes(p.mbarrier_init(1), bar)
    lanes(p.mbarrier_expect(8 * 64), bar)
    lanes(p.tensor_load(2), at(np.zeros(THREADS)), 0, bar, 48, 16)
    lanes.named("mbarrier_wait", bar, 0)
    assert lanes.m.blocked[0] and (lanes.m.shared.bytes[:512] == 255).all()
    assert lanes.m.way.land_one() and not lanes.m.blocked[0]
    want = np.zeros((8, 32), np.float16)
    want[:4, :16] = x[16:, 48:]
    place = SHARED + np.arange(0, 512, 16)
    place ^= (place >> 7 & {0: 0, 64: 3}[swizzle]) << 4
    got = lanes.m.shared.bytes[(place - SHARED)[:, None] + np.arange(16)].view(np.float16)
    np.testing.assert_array_equal(got.reshape(8, 32), want)
    for kind, expected in (("", x), ("add", 2 * x)):
        boxes(lanes, out, (8, 32), swizzle)
        lanes(p.tensor_store(2, kind), 0, at(np.zeros(THREADS)), 48, 16)
        lanes.named("bulk_commit")
        before = out.copy()
        lanes(p.bulk_wait(0, True))
        assert (out == before).all()
        lanes(p.bulk_wait(0, False))
        np.testing.assert_array_equal(out[16:, 48:], expected[16:, 48:])
    assert not out[:16].any() and not out[:, :48].any()


def test_a_store_whose_buffer_is_written_too_early() -> None:
    out = np.zeros((8, 32), np.float16)
    lanes = Lanes("late", out=out)
    fill(lanes, np.ones(256, np.float16))
    boxes(lanes, out, (8, 32), 0)
    lanes.m.on = np.arange(THREADS) == 0
    lanes(p.tensor_store(2), 0, at(np.zeros(THREADS)), 0, 0)
    lanes.named("bulk_commit")
    lanes(p.store_shared(32, 1, "i32", 0, False), at(np.zeros(THREADS)), 5)
    with pytest.raises(SimulatedHazard, match="changed while a tensor store"):
        lanes(p.bulk_wait(0, True))


def test_reads_that_no_fence_orders_with_the_engine() -> None:
    x = np.zeros((8, 32), np.float16)
    for fenced in (False, True):
        lanes, bar = Lanes("late", x=x), at(np.full(THREADS, 8192))
        boxes(lanes, x, (8, 32), 0)
        fill(lanes, x)
        lanes(p.load_shared(32, 1, "i32", 0), at(4 * (np.arange(THREADS) % 128)))
        if fenced:
            lanes.named("proxy_fence")
        lanes.m.on = np.arange(THREADS) == 0
        lanes(p.mbarrier_init(1), bar)
        if fenced:
            lanes(p.tensor_load(2), at(np.zeros(THREADS)), 0, bar, 0, 0)
        else:
            with pytest.raises(SimulatedHazard, match="may still be under way"):
                lanes(p.tensor_load(2), at(np.zeros(THREADS)), 0, bar, 0, 0)


def test_records_of_a_trace() -> None:
    """One thread has a place: a header of tag and clock, units of records, and how many there were."""
    buffer = np.zeros(TRACE_HEADER + 2 * TRACE_UNIT, np.int64)
    lanes, place = Lanes(buffer=buffer), np.zeros(THREADS, np.uint64)
    place[32] = buffer.ctypes.data
    lanes(p.trace_begin(77), place)
    clocks = [np.full(THREADS, -count, np.int32) for count in range(7)]
    for index, clock in enumerate(clocks):
        lanes(p.trace_record(None if index else 7 << 16 | 3, index + 1), place, place, clock)
    second = place + np.uint64(8 * TRACE_UNIT)
    lanes(p.trace_record(1 << 16 | 10, 1), place, second, clocks[1])
    lanes.named("trace_end", place, 8, 2)
    assert buffer[0] >> 32 == 77
    assert buffer[4] == 2 << 32 | 8
    halves = buffer[TRACE_HEADER:].view(np.int32).reshape(2, -1)
    assert [*halves[0]] == [7 << 16 | 3, 0, -1, -2, -3, -4, -5, -6]
    assert [*halves[1]] == [1 << 16 | 10, -1, *[0] * 6]


def test_every_primitive_was_tried_here(request: pytest.FixtureRequest) -> None:
    """Runs last in this file; alone it says nothing. Processes that share the tests each try a part: then the file
    runs once more, in a process of its own."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(request.path),
        ]
        alone = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
        run = subprocess.run(
            command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout[-3000:]
        return
    if len(TRIED) < 20:
        pytest.skip("the other tests of this file have not run")
    named = {make().name for make in SAMPLES.values()}
    assert (PRIMITIVES.keys() | named) - TRIED == set()
