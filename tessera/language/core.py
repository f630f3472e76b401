"""Exports as `tl.core` the operations that the compiler implements, with the dtypes and value classes they work on.

The stubs stand in modules by subject (creation, memory, arithmetic, combine, hints); here they come together, and
those that are also methods of tensors are entered.
"""

from __future__ import annotations

import builtins
import typing
from typing import Any

from tessera import dtypes
from tessera.dtypes import *
from tessera.dtypes import MAX_TILE_ELEMENTS, parse_scalar_type
from tessera.errors import UnsupportedLanguageConstruct
from tessera.language import arithmetic, atomics, combine, creation, hints, memory, standard, values
from tessera.language.aggregate import aggregate, constexpr_function
from tessera.language.aggregate import replace_fields as aggregate_replace
from tessera.language.arithmetic import *
from tessera.language.atomics import *
from tessera.language.block_pointer import block_pointer
from tessera.language.builtin import builtin, must_use_result, tensor_method
from tessera.language.combine import *
from tessera.language.creation import *
from tessera.language.descriptor import tensor_descriptor, tensor_descriptor_type
from tessera.language.hints import *
from tessera.language.hints import extern_elementwise
from tessera.language.memory import *
from tessera.language.values import *
from tessera.language.values import METHODS, constexpr

__all__ = [
    "METHODS", "TRITON_MAX_TENSOR_NUMEL", "aggregate", "aggregate_replace", "block_pointer", "builtin", "constexpr",
    "constexpr_function", "extern", "extern_elementwise", "must_use_result", "str_to_ty", "tensor_descriptor",
    "tensor_descriptor_type", "tensor_method",
]  # fmt: skip
__all__ += dtypes.__all__
__all__ += arithmetic.__all__
__all__ += atomics.__all__
__all__ += combine.__all__
__all__ += creation.__all__
__all__ += hints.__all__
__all__ += memory.__all__
__all__ += values.__all__

TRITON_MAX_TENSOR_NUMEL = MAX_TILE_ELEMENTS
_aggregate = aggregate  # its name before it became public


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
