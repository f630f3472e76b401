"""Tile IR printed as kernels in Python: the source of every op compiles to that op, or there is none and it is said."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.compiler.compile import make_backend
from tessera.compiler.printer import NoSource, print_kernel
from tessera.ir import Module, parse_module
from tessera.ir.core import OPCODES
from tests.unit.op_samples import SAMPLES

CPU, GPU = GPUTarget("cpu", "native", 1), GPUTarget("cuda", 90, 32)
# What the samples work on, made in the kernel: the language passes no tiles.
PROLOGUE = """
%r: tile<8xi32> = arange {start=0, end=8}
%s8: tile<8x*i32> = splat %q
%tq: tile<8x*i32> = addptr %s8, %r
%f8: tile<8x*fp32> = splat %p
%tp: tile<8x*fp32> = addptr %f8, %r
%ti: tile<8xi32> = load %tq, _, _
%tj: tile<8xi32> = load %tq, _, _
%tf: tile<8xfp32> = load %tp, _, _
%tg: tile<8xfp32> = load %tp, _, _
%tc: tile<8xi1> = cmp %ti, %tj {predicate='lt'}
%mp0: tile<1x8x*fp32> = expand_dims %tp {axis=0}
%mp: tile<4x8x*fp32> = broadcast %mp0
%m: tile<4x8xfp32> = load %mp, _, _
%mc0: tile<1x8xi1> = expand_dims %tc {axis=0}
%mc: tile<4x8xi1> = broadcast %mc0
%n: tile<8x4xfp32> = trans %m {order=[1, 0]}
%sq0: tile<4xi32> = arange {start=0, end=4}
%sq1: tile<4x*fp32> = splat %p
%sq2: tile<4x*fp32> = addptr %sq1, %sq0
%sq3: tile<1x4x*fp32> = expand_dims %sq2 {axis=0}
%sq4: tile<4x4x*fp32> = broadcast %sq3
%sq: tile<4x4xfp32> = load %sq4, _, _
"""
SCALARS = "%i: i32, %j: i32, %u: u32, %l: i64, %f: fp32, %g: fp32, %c: i1, %p: *fp32, %q: *i32"
# Ops of the levels below tile IR, what only compilers write, and what has no expression of its own.
WITHOUT = {
    "breakpoint", "call", "check", "condition", "cta_rank", "descriptor_gather", "descriptor_scatter",
    "grid_dependency", "inline_asm", "print", "special_register", "volatile_asm", "while",
}  # fmt: skip
# These stand for nothing in the source: the language broadcasts by itself, and numbers are literals.
IMPLIED = {"splat", "broadcast", "const", "yield"}
ROOMS = ("arith", "math", "tile", "memory", "control", "special")
TILE_OPS = [op for op in SAMPLES if OPCODES[op].__module__.removeprefix("tessera.ops.") in ROOMS]


def module_of(body: str) -> Module:
    return parse_module(
        f"module {{}} {{\nfunc {{name='sample'}} ({SCALARS}) {{\n{PROLOGUE}{body}return []\n}}\n}}\n"
    )


def loaded(source: str, folder: Path, name: str = "sample") -> Any:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    room = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(room)
    return getattr(room, name)


def compiled(source: str, folder: Path) -> Module:
    fn = loaded(source, folder)
    signature = {p.name: p.annotation_type for p in fn.params}
    target = GPU if "libdevice.add_rz" in source else CPU  # the CPU has no op for it
    options = make_backend(target).parse_options(
        {"any_extent": True, "debug": "device_assert" in source}
    )
    return ASTSource(fn, signature).make_ir(options)


@pytest.mark.parametrize("opcode", TILE_OPS)
def test_what_is_printed_compiles_to_the_same_op(opcode: str, tmp_path: Path):
    module = module_of(SAMPLES[opcode])
    try:
        source = print_kernel(module)
    except NoSource:
        assert opcode in WITHOUT
        return
    assert opcode not in WITHOUT
    made = [op for op in compiled(source, tmp_path).walk() if op.opcode == opcode]
    assert made or opcode in IMPLIED, source


@pytest.mark.parametrize("opcode", ["while", "inline_asm"])
def test_what_has_no_source_is_named(opcode: str):
    with pytest.raises(NoSource, match=opcode):
        print_kernel(module_of(SAMPLES[opcode]))


@tessera.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + i, e / tl.sum(e, 0), mask=i < n)


@tessera.jit
def counted(x, y, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.int64)
    for k in range(0, n, BLOCK):
        v = tl.load(x + k + tl.arange(0, BLOCK), mask=k + tl.arange(0, BLOCK) < n)
        if n > 3:
            total += v.to(tl.int64) // 3
        else:
            total -= v % 5
    tl.store(y, tl.sum(total, 0))


def test_a_compiled_kernel_shows_its_source(tmp_path: Path):
    """`kernel.asm["py"]` of kernels that people wrote runs with the same results, constants written in."""
    x = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    want, got = np.zeros_like(x), np.zeros_like(x)
    source = softmax[(3,)](x, want, 20, BLOCK=32).asm["py"]
    loaded(source, tmp_path, "softmax")[(3,)](x, got, 20)
    np.testing.assert_array_equal(got, want)

    ints = np.arange(50, dtype=np.int32)
    one, two = np.zeros(1, np.int64), np.zeros(1, np.int64)
    source = counted[(1,)](ints, one, 50, BLOCK=16).asm["py"]
    assert "if " in source and "for " in source
    loaded(source, tmp_path, "counted")[(1,)](ints, two, 50)
    assert two[0] == one[0] != 0


@tessera.jit
def hundred(x):
    i = tl.arange(0, 100)
    tl.store(x + i, i * 2)


def test_extents_on_cpus_may_be_any_number_if_asked():
    x = np.zeros(100, np.int32)
    hundred[(1,)](x, any_extent=True)
    np.testing.assert_array_equal(x, 2 * np.arange(100))
    with pytest.raises(Exception, match="power of 2"):
        hundred[(1,)](x)
    with pytest.raises(Exception, match="power of 2"):
        tessera.compile(
            ASTSource(hundred, {"x": "*i32"}), GPUTarget("cuda", 90, 32), {"any_extent": True}
        )
