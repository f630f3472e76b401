"""Exports as `tl.core` the operations that the compiler implements, with the dtypes and value classes they work on.

The stubs stand in modules by subject (creation, memory, arithmetic, combine, hints); here they come together, and
those that are also methods of tensors are entered.
"""

from __future__ import annotations

import builtins
import typing
from typing import Any

from tessera.dtypes import (
    MAX_TILE_ELEMENTS,
    bfloat16,
    block_type,
    dtype,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    parse_scalar_type,
    pi32_t,
    pointer_type,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)  # fmt: skip
from tessera.errors import UnsupportedLanguageConstruct
from tessera.language import arithmetic, atomics, combine, creation, memory, standard
from tessera.language.aggregate import (
    aggregate,
    constexpr_function,
)
from tessera.language.aggregate import (
    replace_fields as aggregate_replace,
)
from tessera.language.arithmetic import (
    PropagateNan,
    abs,
    add,
    ceil,
    clamp,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    expect_zero,
    fdiv,
    floor,
    fma,
    log,
    log2,
    maximum,
    minimum,
    mul,
    rsqrt,
    sin,
    sqrt,
    sqrt_rn,
    sub,
    umulhi,
    where,
)  # fmt: skip
from tessera.language.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_poll,
    atomic_store,
    atomic_xchg,
    atomic_xor,
)  # fmt: skip
from tessera.language.block_pointer import block_pointer
from tessera.language.builtin import builtin, must_use_result, tensor_method
from tessera.language.combine import (
    associative_scan,
    dot,
    dot_scaled,
    gather,
    histogram,
    reduce,
)
from tessera.language.creation import (
    arange,
    broadcast,
    broadcast_to,
    cast,
    cat,
    expand_dims,
    full,
    interleave,
    item,
    join,
    num_programs,
    permute,
    program_id,
    ravel,
    reshape,
    split,
    squeeze,
    to_tensor,
    trans,
    unsqueeze,
    view,
    zeros,
    zeros_like,
)  # fmt: skip
from tessera.language.descriptor import tensor_descriptor, tensor_descriptor_type
from tessera.language.hints import (
    assume,
    condition,
    debug_barrier,
    device_assert,
    device_print,
    extern_elementwise,
    inline_asm_elementwise,
    map_elementwise,
    max_constancy,
    max_contiguous,
    multiple_of,
    range,
    static_assert,
    static_print,
    static_range,
)  # fmt: skip
from tessera.language.memory import (
    advance,
    load,
    load_tensor_descriptor,
    make_block_ptr,
    make_tensor_descriptor,
    store,
    store_tensor_descriptor,
)  # fmt: skip
from tessera.language.values import (
    METHODS,
    const,
    constexpr,
    constexpr_type,
    slice,
    tensor,
    tuple,
    tuple_type,
)  # fmt: skip

TRITON_MAX_TENSOR_NUMEL = MAX_TILE_ELEMENTS
_aggregate = aggregate  # its name before it was public


def str_to_ty(name: Any, c: Any = None) -> Any:
    """The type that a signature names: "fp32", "*i8", "*kfp16" (const), "tensordesc<fp16[32, 64]>", "constexpr".

    `c` is the value of a constexpr. ValueError for anything else.
    """
    if name == "constexpr":
        return constexpr_type(c)
    if isinstance(name, (builtins.tuple, list)):
        return tuple_type([str_to_ty(n, None) for n in typing.cast("list[Any]", name)])
    text = str(name).replace(" ", "")
    if text.startswith("tensordesc<"):
        inner, dims = text.removeprefix("tensordesc<").rstrip(">").split("[")
        shape = [int(n) for n in dims.split("]")[0].split(",")]
        return tensor_descriptor_type(block_type(parse_scalar_type(inner), shape))
    return parse_scalar_type(text)


def extern(fn: Any) -> Any:
    """Decorator of functions that return `extern_elementwise(…)`. They cannot be compiled: no bitcode is linked.

    Raises UnsupportedLanguageConstruct; write the function with `@tessera.jit`, and call `extra.libdevice`.
    """
    raise UnsupportedLanguageConstruct(
        f"the external function {getattr(fn, '__name__', fn)!r} is not supported",
        help="functions of NVIDIA's libdevice are in tl.extra.libdevice, on every target",
    )


# The tensor methods, by the module that defines the operation.
_METHODS = {
    arithmetic: "abs ceil cos erf exp exp2 floor log log2 logical_and logical_or rsqrt sin sqrt sqrt_rn",
    combine: "associative_scan gather histogram reduce",
    creation: "broadcast_to cast expand_dims item permute ravel reshape split trans view",
    atomics: "atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor",
    memory: "advance store",
    standard: "argmax argmin cdiv cumprod cumsum flip max min reduce_or sigmoid softmax sort sum xor_sum",
}
for _module, _names in _METHODS.items():
    METHODS.update((_name, getattr(_module, _name)) for _name in _names.split())
METHODS["to"] = cast

__all__ = [
    "METHODS", "PropagateNan", "TRITON_MAX_TENSOR_NUMEL", "abs", "add", "advance", "aggregate", "aggregate_replace",
    "arange", "associative_scan", "assume", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min",
    "atomic_or", "atomic_xchg", "atomic_xor", "bfloat16", "block_pointer", "block_type", "broadcast", "broadcast_to",
    "builtin", "cast", "cat", "ceil", "clamp", "condition", "const", "constexpr", "constexpr_function",
    "constexpr_type", "cos", "debug_barrier", "device_assert", "device_print", "div_rn", "dot", "dtype", "erf", "exp",
    "exp2", "expand_dims", "fdiv", "float16", "float32", "float64", "float8e4b15", "float8e4b8", "float8e4nv",
    "float8e5", "float8e5b16", "floor", "fma", "full", "gather", "histogram", "inline_asm_elementwise", "int1", "int16",
    "int32", "int64", "int8", "interleave", "item", "join", "load", "load_tensor_descriptor", "log", "log2",
    "make_block_ptr", "make_tensor_descriptor", "max_constancy", "max_contiguous", "maximum", "minimum", "mul",
    "multiple_of", "must_use_result", "num_programs", "permute", "pi32_t", "pointer_type", "program_id", "range",
    "ravel", "reduce", "reshape", "rsqrt", "sin", "slice", "split", "sqrt", "sqrt_rn", "squeeze", "static_assert",
    "static_print", "static_range", "store", "store_tensor_descriptor", "sub", "tensor", "tensor_descriptor",
    "tensor_descriptor_type", "tensor_method", "to_tensor", "trans", "tuple", "tuple_type", "uint16", "uint32",
    "uint64", "uint8", "umulhi", "unsqueeze", "view", "void", "where", "zeros", "zeros_like",
    "atomic_load", "atomic_poll", "atomic_store", "dot_scaled", "expect_zero", "extern", "extern_elementwise",
    "map_elementwise", "str_to_ty",
]  # fmt: skip
