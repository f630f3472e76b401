"""Conversions, shared memory and products as PTX: which instructions, how wide, and no local memory."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from tessera.backends.gpu.module import lower_module
from tessera.backends.llvm import binding
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.backend import architecture
from tessera.backends.nvidia.emit import NvidiaTarget
from tessera.backends.nvidia.target import facts_for
from tessera.layout import (
    LinearLayout,
    blocked,
    default_blocked,
    mma_acc,
    mma_operand,
    shared_swizzled,
    widest_swizzle,
)  # fmt: skip
from tessera.passes.gpu_layout.rules import fma_acc
from tests.gpu import shared_kernels as kernels

INSTRUCTION = re.compile(r"^\t(?:@\S+ )?([a-z][\w.:]*)", re.M)
SHAPE = (64, 64)


def compile(kernel: kernels.Kernel, cc: int, **features: bool) -> Counter[str]:
    """Instructions of the kernel's PTX, which ptxas accepts without spilling."""
    facts = replace(facts_for(cc), **features)
    text = lower_module(kernel.module(facts), NvidiaTarget(cc, facts))
    ptx = binding.optimise(text, binding.nvptx(architecture(cc), 84), "").to_assembly()
    done = ptxas.assemble(ptx, architecture(cc))
    assert done.spill_stores == 0
    assert ".local" not in ptx
    return Counter(INSTRUCTION.findall(ptx))


def total(found: Counter[str], start: str) -> int:
    return sum(n for name, n in found.items() if name.startswith(start))


@pytest.mark.parametrize("cc", [80, 90])
def test_accumulators_to_rows(cc: int):
    """fp16 fragments: stmatrix and vectors of 16 bytes, or where there is none vectors and ldmatrix."""
    src, dst = mma_acc(SHAPE, 2, 2), default_blocked(SHAPE, 4, 8)
    found = compile(kernels.conversion(src, dst, "fp16"), cc)
    assert found["bar.sync"] == 1
    wide = found["st.shared.v4.b32"] + found["stmatrix.sync.aligned.m8n8.x4.shared.b16"]
    wide += found["ld.shared.v4.b32"] + found["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]
    assert wide == 8
    moves = ("st.shared", "stmatrix", "ld.shared", "ldmatrix")
    assert sum(total(found, name) for name in moves) == 8
    assert cc == 90 or not total(found, "stmatrix")


def test_rows_to_an_operand():
    src, dst = default_blocked(SHAPE, 4, 8), mma_operand(SHAPE, 0, 16, 4, 1)
    found = compile(kernels.conversion(src, dst, "fp16"), 80)
    assert found["st.shared.v4.b32"] == 4
    assert found["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] == 4


def test_accumulators_are_the_next_operand():
    src, dst = mma_acc(SHAPE, 4, 1), mma_operand(SHAPE, 0, 16, 4, 1)
    found = compile(kernels.conversion(src, dst, "fp16"), 90)
    assert not total(found, "bar") and not total(found, "shfl") and not total(found, "st.shared")


def test_exchange_within_a_warp():
    """An 8x8 transposition of words among 8 lanes: one shuffle a word, no shared memory; or rows of 16 bytes through
    shared memory, for which the warp waits for no other."""
    src = blocked((8, 32), (1, 8), (8, 4), (1, 1), (1, 0))
    dst = blocked((8, 32), (8, 1), (1, 32), (1, 1), (0, 1))
    kernel = kernels.conversion(src, dst, "fp32")
    found = compile(kernel, 80, warp_exchanges=False)
    assert 0 < total(found, "shfl.sync") <= 8
    assert not total(found, "bar") and not total(found, "st.shared")
    found = compile(kernel, 80)
    assert total(found, "ldmatrix") == 2 and total(found, "st.shared") == 2
    assert total(found, "bar") == total(found, "bar.warp.sync") == 2


def test_bytes_travel_four_in_a_word():
    src = blocked((8, 16), (1, 4), (8, 4), (1, 1), (1, 0))
    dst = blocked((8, 16), (4, 1), (2, 16), (1, 1), (0, 1))
    found = compile(kernels.conversion(src, dst, "i8"), 80)
    assert total(found, "shfl.sync") <= 4


@pytest.mark.parametrize("trans", [False, True])
def test_operands_from_a_swizzled_buffer(trans: bool):
    """B read row by row needs .trans, its transpose does not."""
    memory = shared_swizzled(SHAPE, (1, 0), 16, widest_swizzle(SHAPE, (1, 0), 16))
    src, dst = default_blocked(SHAPE, 4, 8), mma_operand(SHAPE, 1, 16, 2, 2)
    kernel = kernels.through_shared(src, memory, dst, "fp16", "trans" if trans else "init")
    found = compile(kernel, 80)
    assert found["st.shared.v4.b32"] == 4
    kind = "" if trans else ".trans"
    assert found[f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16"] == 8
    assert total(found, "ldmatrix") == 8


@pytest.mark.parametrize(("vec", "instruction"), [(8, "cg"), (4, "ca"), (2, "ca")])
def test_asynchronous_copies(vec: int, instruction: str):
    memory = shared_swizzled(SHAPE, (1, 0), 16, 128)
    kernel = kernels.ring_copy(
        default_blocked(SHAPE, 4, vec), memory, mma_operand(SHAPE, 0, 16, 2, 2), "fp16"
    )
    found = compile(kernel, 80)
    assert total(found, f"cp.async.{instruction}.shared.global") == 3 * 32 // vec
    assert found["cp.async.commit_group"] == 3
    assert found["cp.async.wait_group"] == 3
    assert total(found, "st.shared") == 0


def test_single_halves_cannot_be_copied_asynchronously():
    memory = shared_swizzled(SHAPE, (1, 0), 16, 128)
    src = default_blocked(SHAPE, 4, 1)
    found = compile(kernels.ring_copy(src, memory, src, "fp16"), 80)
    assert found["st.shared.b16"] == 3 * 32
    assert not total(found, "cp.async.ca") and not total(found, "cp.async.cg")


ROWS = [(cc, row) for cc in (80, 90) for row in facts_for(cc).mma]


@pytest.mark.parametrize(("cc", "row"), ROWS, ids=[f"sm{cc}-{row.name}" for cc, row in ROWS])
def test_matrix_instructions(cc: int, row):
    m, n, k = 4 * row.m, 4 * row.n, 2 * row.k
    a = mma_operand((m, k), 0, row.operand_bits, 2, 2)
    b = mma_operand((k, n), 1, row.operand_bits, 2, 2)
    acc = mma_acc((m, n), 2, 2, instr_m=row.m)
    elems = [row.a.short, row.b.short, row.acc.short]
    found = compile(kernels.product("mma", a, b, acc, elems, f"instruction={row.name!r}"), cc)
    assert found[row.asm] == 2 * 2 * 2
    rounding = "cvt.rn.tf32.f32" if cc >= 90 else "cvt.rna.tf32.f32"
    assert found[rounding] == (24 if row.rounds_to else 0)
    assert not total(found, "prmt") or row.operand_bits == 8


def test_independent_instructions_alternate():
    """Two neighbouring mma never continue the same accumulator."""
    name = facts_for(80).mma[0].name
    a, b = mma_operand((32, 32), 0, 16, 1, 1), mma_operand((32, 16), 1, 16, 1, 1)
    kernel = kernels.product(
        "mma", a, b, mma_acc((32, 16), 1, 1), ["fp16", "fp16", "fp32"], f"instruction={name!r}"
    )
    facts = facts_for(80)
    text = lower_module(kernel.module(facts), NvidiaTarget(80, facts))
    lines = [x for x in text.splitlines() if " asm " in x and "mma.sync" in x]
    results = [x.split(" = ")[0].strip() for x in lines]
    parts = dict(re.findall(r"(%\w+) = extractvalue \{[^}]*\} (%\w+), \d", text))
    sources = [{parts.get(v) for v in re.findall(r"float (%\w+)", x)} for x in lines]
    assert len(lines) == 8
    assert sum(bool(s & set(results)) for s in sources) == 4  # those of the second step along K
    assert all(before not in s for before, s in zip(results, sources[1:]))


@pytest.mark.parametrize("elem", ["fp32", "fp16", "i32"])
def test_fma_products(elem: str):
    """Operands are read in vectors, each element once a thread."""
    acc = fma_acc((64, 64), 4, 32)
    layout: LinearLayout = default_blocked((64, 64), 4, 4)
    found = compile(kernels.product("dot", layout, layout, acc, [elem] * 3, ""), 80)
    multiply = {"fp32": "fma.rn.f32", "fp16": "fma.rn.f16", "i32": "mad.lo.s32"}[elem]
    assert found[multiply] == 32 * 64
    loads = (4 + 8) * 64  # rows of A and columns of B of one thread
    words = loads * (2 if elem == "fp16" else 4) // 16
    assert found["ld.shared.v4.b32"] + found["ld.shared.v2.b32"] // 2 == words
