"""Computes signature types and specialisation keys from launch arguments.

Each argument gives a pair (type string, key). A "constexpr" key is the value itself, for which the kernel is compiled.
"D" says that an integer or address is divisible by 16, "W" that the storage behind an array holds more elements than
32-bit offsets can reach. Pairs are shared objects, so that building and comparing the key of a launch stays cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from tessera.compiler.source import WIDE_ATTR
from tessera.dtypes import dtype, parse_scalar_type
from tessera.errors import ArgumentOverflow, SpecializationError
from tessera.language.aggregate import ConstexprFunction
from tessera.language.callable import JITCallable
from tessera.language.parameters import KernelParam
from tessera.language.values import constexpr
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.dlpack import memory_of, speaks_dlpack
from tessera.runtime.arguments.tensors import element_type, is_numpy, itemsize_of, numpy
from tessera.utilities import number

Pair = tuple[Any, Any]

_ONE: Pair = ("constexpr", 1)
_NONE: Pair = ("constexpr", None)
_BOOL: Pair = ("u1", None)
_FLOAT: Pair = ("fp32", None)
_INT = {width: ((width, ""), (width, "D")) for width in ("i32", "i64", "u64")}
_POINTER: dict[tuple[object, bool, bool], Pair] = {}  # (dtype of the array, aligned, wide) → pair
_DESCRIPTOR: dict[object, Pair] = {}  # (dtype, block, padding, rounding) → pair
WIDE = 1 << 31  # elements of a storage from which offsets need 64 bits


def _int_width(x: int) -> str:
    if -(1 << 31) <= x < 1 << 31:
        return "i32"
    if -(1 << 63) <= x < 1 << 63:
        return "i64"
    if x < 1 << 64 and x > 0:
        return "u64"
    raise ArgumentOverflow(value=x)


def _int(x: int) -> Pair:
    return _ONE if x == 1 else _INT[_int_width(x)][x % 16 == 0]


_OTHER_TYPE = (
    "no kernel type has these elements: convert them, as `x.astype(np.float32)`, or pass another view of the memory, "
    "as `x.view(np.float32)` or `torch.view_as_real(x)`"
)
_OTHER_ORDER = "the bytes of its elements are in another machine's order: pass `x.astype(x.dtype.newbyteorder('='))`"
_SWAPPED = ">" if sys.byteorder == "little" else "<"  # in names of NumPy's types


def _pointer(kind: object, address: int, storage_bytes: int) -> Pair:
    aligned = address % 16 == 0
    wide = storage_bytes >= WIDE and storage_bytes >= WIDE * itemsize_of(kind)
    found = _POINTER.get((kind, aligned, wide))
    if found is None:
        elem = element_type(kind)
        if elem is None:
            remedy = _OTHER_ORDER if str(kind).startswith(_SWAPPED) else _OTHER_TYPE
            raise SpecializationError(type=f"array of {kind}", help=remedy)
        short = "u1" if elem.short == "i1" else elem.short
        key = ("D" if aligned else "") + ("W" if wide else "")
        found = _POINTER[kind, aligned, wide] = (f"*{short}", key)
    return found


def address_of_array(x: Any) -> int:
    """Return the address of a NumPy array, of an object with an array interface or of one that supports DLPack."""
    if is_numpy(x):
        return x.__array_interface__["data"][0]
    if not hasattr(x, "__cuda_array_interface__"):
        return memory_of(x).address
    return x.__cuda_array_interface__["data"][0]


def _array(x: Any) -> Pair:
    return _pointer(x.dtype, x.__array_interface__["data"][0], storage_bytes(x))


def storage_bytes(x: Any) -> int:
    """Return the size of the memory that an array is a view of, or of the array itself if its library does not say."""
    if hasattr(x, "untyped_storage"):
        return x.untyped_storage().nbytes()
    while getattr(x, "base", None) is not None and hasattr(x.base, "nbytes"):
        x = x.base
    return getattr(x, "nbytes", 0)


def _tensor(x: Any) -> Pair:
    return _pointer(x.dtype, x.data_ptr(), storage_bytes(x))


def _dlpack(x: object) -> Pair:
    memory = memory_of(x)
    return _pointer(memory.dtype, memory.address, memory.nbytes)


def _tuple(x: tuple[object, ...]) -> Pair:
    pairs = [specialize(y) for y in x]
    make: Callable[[list[Any]], object] = getattr(type(x), "_make", tuple)
    return (make([p[0] for p in pairs]), make([p[1] for p in pairs]))


def _descriptor(x: TensorDescriptor) -> Pair:
    key = (x.base.dtype, tuple(x.block_shape), x.padding, x.round_f32_to_tf32)
    found = _DESCRIPTOR.get(key)
    if found is None:
        elem = element_type(x.base.dtype)
        assert elem is not None
        block = ", ".join(map(str, x.block_shape))
        kind = f"tensordesc<{elem.short}[{block}]>"
        found = _DESCRIPTOR[key] = (kind, (x.padding, x.round_f32_to_tf32))
    return found


_HANDLERS: dict[type, Callable[[Any], Pair]] = {
    int: _int, float: lambda x: _FLOAT, bool: lambda x: _BOOL, type(None): lambda x: _NONE,
    tuple: _tuple, constexpr: lambda x: ("constexpr", constant(x.value)), TensorDescriptor: _descriptor,
}  # fmt: skip


def specialize(x: object) -> Pair:
    """Return (type, key) of one argument under the default rules. TypeError for what a kernel cannot take."""
    handler = _HANDLERS.get(type(x))
    if handler is None:
        handler = _HANDLERS[type(x)] = _handler_for(x)
    return handler(x)


def _handler_for(x: object) -> Callable[[Any], Pair]:
    if number(x) is not x:
        return lambda x: specialize(number(x))
    if hasattr(x, "data_ptr"):
        return _tensor
    if isinstance(x, tuple):
        return _tuple
    if is_numpy(x):
        return _array
    if hasattr(x, "__cuda_array_interface__"):
        return lambda x: _pointer(
            numpy().dtype(x.__cuda_array_interface__["typestr"]),
            address_of_array(x),
            storage_bytes(x),
        )
    if speaks_dlpack(x):
        return _dlpack
    if isinstance(x, (JITCallable, ConstexprFunction)):
        return lambda x: ("constexpr", x)
    for base in (bool, float, int):
        if isinstance(x, base):
            return _HANDLERS[base]
    name = "dtype" if isinstance(x, dtype) else type(x).__name__
    kind = "Tracer" if name.endswith("Tracer") else name  # DynamicJaxprTracer, JVPTracer, … of JAX
    raise SpecializationError(type=name, help=_INSTEAD.get(kind))


_INSTEAD = {
    "list": "pass an array, as `np.asarray(x, np.float32)`, or a tuple of numbers",
    "range": "pass an array, as `np.arange(n, dtype=np.int32)`",
    "complex": "pass the real and the imaginary part, or an array of both as float32",
    "type": "annotate the parameter `: tl.constexpr`, and pass a dtype of tessera, as `tl.float32`",
    "function": "put `@tessera.jit` on the function, which the kernel can then call",
    "JITFunction": "pass the array itself",
    "Tracer": "JAX has no array here yet: launch in a function that `jax.pure_callback` calls",
}


def specializer(param: KernelParam) -> Callable[[Any], Pair]:
    """Return the function that specialises a parameter's arguments, as its annotation and options decide."""
    if param.is_constexpr:
        return lambda x: ("constexpr", constant(x.value if isinstance(x, constexpr) else x))
    if param.annotation_type:
        annotated = _annotated(param.annotation_type, param)
        return lambda x: annotated(number(x))
    if not (param.do_not_specialize or param.do_not_specialize_on_alignment or param.is_const):
        return specialize
    fixed, unaligned, const = (
        param.do_not_specialize, param.do_not_specialize_on_alignment, param.is_const
    )  # fmt: skip
    return lambda x: _restricted(x, fixed, unaligned, const)


def specialize_argument(
    x: object, is_const: bool = False, specialize_value: bool = True, align: bool = True
) -> Pair:
    """Return (type, key) of an argument for a parameter with these properties."""
    return _restricted(x, not specialize_value, not align, is_const)


def mangle_type(x: object) -> str:
    """Return the type of an argument in a signature, regardless of its value: "i32" for 1."""
    return _restricted(x, fixed=True)[0]


def type_of_string(name: str, const: object = None) -> Any:
    """Return the language type that a signature's type string means: "*fp32", "i64"."""
    return parse_scalar_type(name)


def _annotated(kind: str, param: KernelParam) -> Callable[[Any], Pair]:
    t = parse_scalar_type(kind)
    if t.is_ptr():
        return lambda x: _annotated_pointer(kind, x)
    if t.is_floating() or t.is_bool() or param.do_not_specialize:
        plain: Pair = (kind, None)
        return lambda x: plain if x is not None else _NONE
    pairs: tuple[Pair, Pair] = ((kind, ""), (kind, "D"))
    if param.do_not_specialize_on_alignment:
        return lambda x: pairs[0]
    return lambda x: pairs[x % 16 == 0] if type(x) is int else pairs[0]


def _annotated_pointer(kind: str, x: object) -> Pair:
    if x is None:
        return _NONE
    key = specialize(x)[1]
    return (kind, "W" if isinstance(key, str) and "W" in key else None)


def constant(x: object) -> Any:
    """Return a compile-time value with Python's numbers in place of NumPy's, also in tuples."""
    return tuple(map(constant, cast("tuple[object, ...]", x))) if type(x) is tuple else number(x)


def _restricted(x: object, fixed: bool, unaligned: bool = False, const: bool = False) -> Pair:
    x = number(x)
    kind, key = specialize(x)
    if fixed and type(x) is int:
        return (_int_width(x), None)
    if isinstance(kind, str) and kind != "constexpr":
        if fixed:
            key = "W" if isinstance(key, str) and "W" in key else None
        elif unaligned:
            key = key.replace("D", "") if isinstance(key, str) else ""
        if const and kind.startswith("*") and not kind.startswith("*k"):
            kind = "*k" + kind[1:]
    return (kind, key)


# --- from pairs to what the compiler takes ---------------------------------------------------------------------
def constants_and_attrs(
    kinds: Any, keys: Any, path: tuple[int, ...] = ()
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return compile-time values and divisibility attributes by index path, also those in tuples."""
    constants: dict[Any, object] = {}
    attrs: dict[Any, Any] = {}
    for i, (kind, key) in enumerate(zip(kinds, keys, strict=True)):
        here = (*path, i)
        if kind == "constexpr":
            constants[here] = key
        elif isinstance(kind, tuple):
            inner_constants, inner_attrs = constants_and_attrs(kind, key, here)
            constants.update(inner_constants)
            attrs.update(inner_attrs)
        elif isinstance(key, str) and key:
            attrs[here] = [["tt.divisibility", 16]] if "D" in key else []
            if "W" in key:
                attrs[here].append([WIDE_ATTR, 1])
        elif kind.startswith("tensordesc") and key is not None and key != ("zero", False):
            padding, rounds = key
            attrs[here] = [["padding", padding], *([["rounds", True]] if rounds else [])]
    return constants, attrs


def flatten_runtime(kinds: Any, values: Any) -> list[Any]:
    """Return the arguments that the binary takes: constants dropped, tuples flattened, arrays as addresses."""
    found: list[Any] = []
    for kind, x in zip(kinds, values, strict=True):
        if kind == "constexpr":
            continue
        if isinstance(kind, tuple):
            found += flatten_runtime(kind, x)
        elif isinstance(x, TensorDescriptor):
            found += flatten_descriptor(x)
        else:
            found.append(x)
    return found


def flatten_descriptor(x: TensorDescriptor) -> list[Any]:
    """Return a descriptor as the binary takes it: base, extents (int32) and strides (int64)."""
    return [x.base, *map(int, x.shape), *map(int, x.strides)]
