"""Assembly of authors in the PTX: packing, several results, ties, and what is refused."""

# pyright: basic
from __future__ import annotations

import re

import pytest

import tessera
import tessera.language as tl
from tessera.errors import CompilationError
from tests.simt_kit import Compiled

C = "constexpr"


@tessera.jit
def bytes_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    r = tl.inline_asm_elementwise(
        "add.u32 $0, $1, $2; // four", "=r,r,r", [tl.load(x + i), tl.load(y + i)], dtype=tl.uint8,
        is_pure=True, pack=4,
    )  # fmt: skip
    tl.store(out + i, r)


@tessera.jit
def two_kernel(x, lo, hi, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.inline_asm_elementwise(
        "{ .reg .b64 w; mul.wide.s32 w, $2, $3; mov.b64 {$0, $1}, w; }", "=r,=r,r,r",
        [tl.load(x + i), 7], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(lo + i, a)
    tl.store(hi + i, b)


@tessera.jit
def halves_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    r = tl.inline_asm_elementwise(
        "neg.f16x2 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float16, is_pure=False, pack=2
    )
    tl.store(out + i, r)


@tessera.jit
def special_kernel(out):
    lane = tl.inline_asm_elementwise(
        "mov.u32 $0, %laneid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out, lane)


@tessera.jit
def dropped_kernel(x):
    v = tl.load(x)
    tl.inline_asm_elementwise(
        "// kept\n not.b32 $0, $1;", "=r,r", [v], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.inline_asm_elementwise(
        "// gone\n not.b32 $0, $1;", "=r,r", [v], dtype=tl.int32, is_pure=True, pack=1
    )


@tessera.jit
def wrong_kernel(x, RULES: tl.constexpr):
    tl.store(
        x,
        tl.inline_asm_elementwise(
            "nop;", RULES, [tl.load(x)], dtype=tl.int32, is_pure=True, pack=1
        ),
    )


def compiled(fn, signature, constants):
    made = Compiled(fn, signature, constants)
    made.assemble()
    return made


def test_four_bytes_go_in_one_register():
    made = compiled(bytes_kernel, {"x": "*u8", "y": "*u8", "out": "*u8", "N": C}, {"N": 1024})
    assert made.count("// four") == 2  # 8 elements a thread


def test_several_results_and_braces():
    made = compiled(two_kernel, {"x": "*i32", "lo": "*i32", "hi": "*i32", "N": C}, {"N": 128})
    assert made.count(r"mul\.wide\.s32 w") == 1


def test_pairs_of_halves():
    made = compiled(halves_kernel, {"x": "*fp16", "out": "*fp16", "N": C}, {"N": 512})
    assert made.count(r"neg\.f16x2") == 2


def test_no_operands():
    assert compiled(special_kernel, {"out": "*i32"}, {}).count("%laneid") == 1


def test_only_pure_assembly_is_dropped():
    made = compiled(dropped_kernel, {"x": "*i32"}, {})
    assert "// kept" in made.ptx and "// gone" not in made.ptx


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("=r,r,r", "has constraints for 2 inputs, but its operands take 1 registers"),
        ("=r,=r,r", "has constraints for 2 outputs, but its operands take 1 registers"),
        ("=r,q", "the constraint 'q' of inline_asm_elementwise is not known"),
    ],
)
def test_constraints_must_fit(rules, text):
    with pytest.raises(CompilationError, match=re.escape(text)):
        Compiled(wrong_kernel, {"x": "*i32", "RULES": C}, {"RULES": rules})
