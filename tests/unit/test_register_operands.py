"""Operands of wgmma that stay in registers over a loop, which ptxas must keep, and how they are rounded to tf32."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.errors import ToolNotFound
from tessera.tools import disasm


@tessera.jit
def chain(d_a_ptr, a_v1_ptr, d_b_ptr, b_v1_ptr, d_v_ptr, v_v1_ptr, v_v2_ptr, o0_ptr):
    ma = tl.arange(0, 64)
    rd = tl.arange(0, 32)
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rm = pm * 64 + ma
    a = d_a_ptr.load([pm * 64, 0])
    a = a.to(tl.float16)
    a_v1 = tl.load(a_v1_ptr + rm)
    a = a * a_v1[:, None]
    a = a.to(tl.float8e5)
    top = tl.full((64,), -1000, tl.float32)
    total = tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, 32), tl.float32)
    for k0 in range(0, 96, 32):
        i = k0 // 32
        b = d_b_ptr.load([0, i * 32])
        b = b.to(tl.float16)
        b_v1 = tl.load(b_v1_ptr + i)
        b = b * b_v1
        b = b.to(tl.float8e5)
        p = tl.dot(a, b)
        top_new = tl.maximum(top, tl.max(p, 1))
        turn = tl.where(top_new > top, -1.0, 1.0)
        p = tl.where(p >= top_new[:, None], 1.0, 0.0)
        total = total * turn + tl.sum(p, 1)
        top = top_new
        acc *= turn[:, None]
        p = p.to(tl.float8e5)
        v = d_v_ptr.load([i * 32, 0])
        v = v.to(tl.float16)
        v_v1 = tl.load(v_v1_ptr + rd).to(tl.float32)
        v = v * v_v1[None, :]
        v_v2 = tl.load(v_v2_ptr + rd)
        v = v * v_v2[None, :]
        v = v.to(tl.float8e5)
        acc = tl.dot(p, v, acc)
    acc = tl.max(acc, 1)
    tl.store(o0_ptr + rm * 1 + pn, acc.to(tl.float32))


SIGNATURE = {
    "d_a_ptr": "tensordesc<fp8e5[64, 32]>", "a_v1_ptr": "*fp32", "d_b_ptr": "tensordesc<fp8e5[32, 32]>",
    "b_v1_ptr": "*fp32", "d_v_ptr": "tensordesc<fp8e5[32, 32]>", "v_v1_ptr": "*bf16", "v_v2_ptr": "*i32",
    "o0_ptr": "*fp32",
}  # fmt: skip


def built() -> Any:
    source = ASTSource(chain, SIGNATURE)
    options = {"num_warps": 8, "num_stages": 3}
    return tessera.compile(source, GPUTarget("cuda", 90, 32), options).asm


def test_a_loop_reads_its_invariant_operand_with_something_else():
    assert built()["ptx"].count("0x9e3779b9") == 1


def test_nothing_else_gets_registers_of_an_invariant_operand():
    """Registers of the first operand are written in the loop before its MMA, or not at all."""
    try:
        lines = disasm.get_sass(built()["cubin"], "chain").splitlines()
    except ToolNotFound:
        pytest.skip("needs nvdisasm or cuobjdump")
    first = next(i for i, line in enumerate(lines) if "GMMA" in line and "RZ, !UPT" in line)
    found = re.search(r"GMMA\S* R\d+, R(\d+)", lines[first])
    assert found is not None
    register = int(found[1])
    operand = "|".join(str(register + i) for i in range(4))
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"\s*\.(L_x_\d+):", line))}
    back = [
        (labels[m[1]], i)
        for i, line in enumerate(lines)
        if (m := re.search(r"BRA `\(\.(L_x_\d+)\)", line)) and labels[m[1]] < first < i
    ]
    begin, end = max(back)
    written = re.compile(rf"\s(?!ST|BAR)[A-Z][A-Z0-9_.]* (?:P\d, )?R(?:{operand})\b(?!\S*\])")
    before, after = (
        [line for line in part if written.search(re.sub(r"/\*.*?\*/", " ", line))]
        for part in (lines[begin:first], lines[first + 1 : end])
    )
    assert before or not after, after[:4]


@tessera.jit
def turned(a, b, c, N: tl.constexpr):
    """A product whose first operand lies in columns, so that MMAs of warpgroups take it from registers."""
    i = tl.arange(0, N)
    x = tl.load(a + i[:, None] + i[None, :] * N)
    y = tl.load(b + i[:, None] + i[None, :] * N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(x + 1.0, y, input_precision="tf32"))


@pytest.mark.parametrize(
    ("capability", "warps", "rounding", "other"),
    [(90, 4, "rna", "rn"), (90, 2, "rn", "rna"), (80, 4, "rna", "rn")],
)
def test_rounding_to_tf32(capability: int, warps: int, rounding: str, other: str):
    """One instruction on sm_90, but for MMAs of warpgroups, which ptxas would let wait for each other."""
    source = ASTSource(turned, {"a": "*fp32", "b": "*fp32", "c": "*fp32"}, {"N": 64})
    ptx = tessera.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": warps}).asm[
        "ptx"
    ]
    assert ("wgmma.mma_async" in ptx) == (capability == 90 and warps == 4)
    assert f"cvt.{rounding}.tf32.f32" in ptx
    assert f"cvt.{other}.tf32.f32" not in ptx
