"""Calls of everything that a kernel may call, with arguments of every kind: which expressions there are."""

# pyright: basic
# ruff: noqa: SIM905
from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from tessera.language.extra import libdevice
from tests.unit.surface_names import LIBDEVICE

DTYPES = {
    "i1": "int1", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32",
    "i64": "int64", "u64": "uint64", "fp8e4nv": "float8e4nv", "fp8e5": "float8e5", "fp16": "float16",
    "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
}  # fmt: skip
CONSTANTS = [
    "True", "0", "3", "-2", "2**40", "2.5", "-0.0", "float('inf')", "float('nan')", "1e-40", "'text'", "None",
    "tl.float32", "(1, 2)", "(16,)", "plus", "()",
]  # fmt: skip
FEW_CONSTANTS = ["3", "-2", "2.5", "None", "'text'", "tl.int8", "(1, 2)"]


def scalar(kind: str) -> str:
    return f"tl.load(p_{kind})"


def tile(kind: str) -> str:
    return f"tl.load(p_{kind} + tl.arange(0, 16))"


def matrix(kind: str) -> str:
    return f"tl.load(p_{kind} + tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :])"


POINTERS = ["p_fp32", "p_fp32 + tl.arange(0, 16)"]
STRUCTURES = [
    "(3, tl.load(p_i32))", "tl.make_tensor_descriptor(p_fp32, [16, 16], [16, 1], [8, 16])",
    "tl.make_block_ptr(p_fp32, (16, 16), (16, 1), (0, 0), (8, 8), (1, 0))", "Pair(tl.load(p_i32), 2)",
]  # fmt: skip
KINDS = [
    *CONSTANTS, *map(scalar, DTYPES), *map(tile, DTYPES), *map(matrix, ("i1", "i32", "fp16", "fp32")), *POINTERS,
    *STRUCTURES,
]  # fmt: skip
SECOND = [
    *FEW_CONSTANTS, *map(scalar, ("i1", "i32", "u64", "fp32")), *map(tile, ("i8", "i32", "u32", "bf16", "fp32")),
    matrix("fp16"), POINTERS[0], STRUCTURES[1],
]  # fmt: skip

UNARY = (
    "exp exp2 log log2 sin cos sqrt sqrt_rn rsqrt erf floor ceil abs sigmoid softmax zeros_like to_tensor ravel trans "
    "split item squeeze sort argmax argmin sum max min xor_sum reduce_or cumsum cumprod bitonic_merge flip "
    "uint_to_uniform_float rand randn randint program_id num_programs assume debug_barrier static_print static_assert "
    "device_assert view reshape permute expand_dims unsqueeze histogram arange multiple_of max_contiguous "
    "max_constancy atomic_load load cdiv range"
).split()
BINARY = (
    "maximum minimum add sub mul fdiv div_rn umulhi cdiv join interleave cat broadcast broadcast_to expand_dims "
    "squeeze unsqueeze reshape view permute trans sum max min argmax argmin cumsum cumprod sort topk bitonic_merge "
    "flip histogram dot arange multiple_of max_contiguous max_constancy expect_zero rand randn randint randint4x "
    "pair_uniform_to_normal load store atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg "
    "atomic_load atomic_store atomic_poll cast full zeros advance device_assert static_assert softmax xor_sum "
    "reduce_or load_tensor_descriptor randn4x rand4x"
).split()
TERNARY = "where clamp fma gather atomic_cas swizzle2d load store dot philox reduce associative_scan".split()
OPERATORS = "+ - * / // % & | ^ << >> == != < <= > >= and or ** @ is".split()

# With {0}, {1}, ... for the operands.
FORMS = [
    *(f"tl.{name}({{0}})" for name in UNARY), *(f"tl.{name}({{0}}, {{1}})" for name in BINARY),
    *(f"tl.{name}({{0}}, {{1}}, {{2}})" for name in TERNARY), *(f"({{0}}) {op} ({{1}})" for op in OPERATORS),
    "-({0})", "~({0})", "not ({0})", "+({0})", "int({0})", "float({0})", "len({0})", "min({0}, {1})", "max({0}, {1})",
    "({0})[{1}]", "({0})[:, None]", "({0})[None]", "({0})[0:1]", "({0})[...]", "({0}).T", "({0}).shape", "({0}).dtype",
    "({0}).type", "({0}).numel", "({0}).value", "({0}).missing", "({0})({1})", "({0}) if ({1}) else ({0})",
    "isinstance({0}, tl.tensor)", "getattr({0}, 'shape')", "hasattr({0}, 'dtype')", "[x for x in {0}]",
    'f"""{{{0}}}"""',
    "plus({0}, {1})", "far({0}, {1})", "host({0}, {1})", "Pair({0}, {1})", "tl.full(({1},), {0}, tl.int32)",
    "tl.full((4, 4), {0}, {1})", "tl.zeros({0}, tl.float32)", "tl.zeros((4,), {0})", "({0}).to({1})",
    "({0}).to(tl.float16, bitcast=True)", "({0}).to(tl.int32, bitcast={1})",
    "({0}).to(tl.float16, fp_downcast_rounding={1})", "tl.sum({0}, axis={1}, keep_dims=True)",
    "tl.sum({0}, dtype={1})", "tl.max({0}, 0, return_indices=True)", "tl.max({0}, 0, return_indices={1})",
    "tl.reduce({0}, {1}, plus)", "tl.reduce(({0}, {1}), 0, pairs)", "tl.associative_scan({0}, {1}, plus)",
    "tl.associative_scan(({0}, {1}), 0, pairs, reverse=True)", "tl.dot({0}, {0}, {1})",
    "tl.dot({0}, {1}, out_dtype=tl.float16)", "tl.dot({0}, {0}, input_precision={1})",
    "tl.dot_scaled({0}, {1}, 'e4m3', {0}, None, 'e4m3')", "tl.dot_scaled({0}, None, {1}, {0}, None, {1})",
    "tl.load(p_fp32 + tl.arange(0, 16), mask={0}, other={1})", "tl.load(p_i32, cache_modifier={0})",
    "tl.load(p_bf16 + ({0}))", "tl.store(p_bf16 + tl.arange(0, 16), {0}, mask={1})", "tl.load({0}, volatile={1})",
    "tl.atomic_add(p_fp32 + tl.arange(0, 16), {0}, mask={1})", "tl.atomic_max(p_i64, {0}, sem={1})",
    "tl.atomic_cas(p_i32 + tl.arange(0, 16), {0}, {1})", "tl.atomic_xchg({0}, {1}, scope='cta')",
    "tl.atomic_poll(p_i32, {0}, timeout_ns={1})", "tl.make_block_ptr({0}, (16,), (1,), ({1},), (8,), (0,))",
    "tl.make_block_ptr(p_i8, ({0},), ({1},), (0,), (8,), (0,))", "tl.make_block_ptr(p_i8, {0}, {0}, {0}, {1}, {1})",
    "tl.make_tensor_descriptor({0}, [16, {1}], [16, 1], [8, 16])",
    "tl.make_tensor_descriptor(p_fp16, [{0}, 16], [{1}, 1], [8, 16])",
    "tl.make_tensor_descriptor(p_fp16, {0}, {0}, {1})",
    "tl.make_tensor_descriptor(p_fp32, [16, 16], [16, 1], [8, 16]).load([{0}, {1}])",
    "tl.make_tensor_descriptor(p_fp32, [16, 16], [16, 1], [8, 16]).store([{0}, 0], {1})",
    "tl.make_tensor_descriptor(p_fp32, [16, 16], [16, 1], [8, 16]).atomic_add([0, {0}], {1})",
    "tl.make_tensor_descriptor(p_fp32, [16, 16], [16, 1], [1, 16]).gather({0}, {1})",
    "tl.make_tensor_descriptor(p_fp32, [16, 16], [16, 1], [1, 16]).scatter({1}, {0}, 0)",
    "tl.device_print('x', {0}, {1})", "tl.device_print({0}, 1)", "tl.device_assert({0}, {1})",
    "tl.static_assert(True, {0})", "print('x', {0})", "tl.map_elementwise(plus, {0}, {1})",
    "tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [{0}], {1}, True, 1)", "tl.philox({0}, {1}, {1}, {1}, {1})",
    "tl.randint4x({0}, {1}, {1})", "tl.tuple({0})", "tl.constexpr({0})", "range({0}, {1})", "list({0})",
    "tl.histogram({0}, 16, mask={1})", "tl.topk({0}, {1}, descending=False)", "tl.flip({0}, dim={1})",
    "tl.cat({0}, {1}, can_reorder=True)", "tl.softmax({0}, {1}, keep_dims=True)", "tl.umulhi({1}, {0})",
    "tl.str_to_ty({0})", "tl.pointer_type({0})", "tl.block_type(tl.int32, {0})", "tl.extra.cuda.num_warps({0})",
    "tl.target_info.cuda_capability_geq({0}, {1})", "tl.aggregate_replace({0}, left={1})",
]  # fmt: skip


def _library_call(name: str) -> str:
    count = len(getattr(libdevice, name).signature.parameters)
    return f"libdevice.{name}({', '.join(f'{{{i}}}' for i in range(count))})"


LIBRARY = [_library_call(name) for name in LIBDEVICE]

HEAD = """\
from typing import Any
import tessera
import tessera.language as tl
from tessera.language.extra import libdevice

@tessera.jit
def plus(a, b):
    return a + b

@tessera.jit
def pairs(a, b, c, d):
    return a + c, b + d

@tessera.jit(noinline=True)
def far(a, b):
    return a + b

@tessera.constexpr_function
def host(a, b):
    return a * b

@tessera.aggregate
class Pair:
    left: Any
    right: Any

@tessera.jit
def keep(ints, floats, r):
    if isinstance(r, tl.tuple):
        for i in tl.static_range(len(r)):
            keep(ints + i * 4096, floats + i * 4096, r[i])
    elif isinstance(r, tl.tensor):
        v = tl.ravel(r) if len(r.shape) > 0 else r
        at = tl.arange(0, r.numel) if len(r.shape) > 0 else 0
        if r.dtype.is_ptr():
            pass
        elif r.dtype.is_int():
            tl.store(ints + at, v.to(tl.int64))
        else:
            tl.store(floats + at, v.to(tl.float32).to(tl.float64) if r.dtype.is_fp8() else v.to(tl.float64))
"""


def calls(forms: list[str], everything: bool) -> Iterator[str]:
    """The expressions. Without `everything` a third operand is a tile or a constant, pairs are fewer."""
    for form in forms:
        count = 1 + max(int(n) for n in re.findall(r"{(\d)}", form))
        second = KINDS if everything else SECOND
        rest = [tile("fp32"), tile("i32"), "2", "None"]
        choices = [KINDS, second, rest, rest[:1]][:count]
        for operands in itertools.product(*choices):
            yield form.format(*operands)
