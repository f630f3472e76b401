"""Defines the scalar, pointer and block types of the language, which host, front end, IR and back ends share.

A `dtype` carries its signedness, so the IR needs no signed and unsigned variants of an operation: `div` on
`uint32` operands *is* the unsigned division. Types are interned or frozen: compare them with `==`, hash them freely.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

__all__ = [
    "bfloat16", "block_type", "dtype", "float16", "float32", "float64", "float8e4b15", "float8e4b8", "float8e4nv",
    "float8e5", "float8e5b16", "int1", "int16", "int32", "int64", "int8", "pi32_t", "pointer_type", "uint16",
    "uint32", "uint64", "uint8", "void",
]  # fmt: skip

# `is_fp16`, `is_int32`: tests of a type by name. Not `is_cuda`, which arrays have.
TYPE_TEST = re.compile(r"is_(u?int|fp|bf)\d\w*|is_void")
MAX_TILE_ELEMENTS = 1 << 20  # elements of one tile; the front end rejects larger ones


class Kind(enum.IntEnum):
    """Order of the weak-scalar rule: a number takes the dtype of a tensor of the same or a higher kind."""

    BOOLEAN = 0
    INTEGRAL = 1
    FLOATING = 2


class Signedness(enum.Enum):
    SIGNED = 0
    UNSIGNED = 1


class NanEncoding(enum.Enum):
    """How a floating-point format encodes non-finite numbers, in the words of LLVM's `fltNanEncoding`."""

    IEEE = "an exponent of ones: infinity or NaN"
    ALL_ONES = "all bits but the sign: NaN"
    NEGATIVE_ZERO = "the sign alone: NaN"
    NONE = "no code; casts write a NaN as all ones, which reads as a number"


class _ByName(type):
    """Makes `dtype("uint16")` return the type of that name; with all its properties given, a call makes a new type."""

    def __call__(cls, name: object, *about: object, **more: object) -> Any:
        if about:
            return super().__call__(name, *about, **more)
        name = getattr(name, "value", name)  # of a constexpr
        found = next((d for d in (void, *ALL_DTYPES) if d.name == name), None)
        if found is None:
            raise ValueError(f"no type is named {name!r}: there are int32, uint8, fp16, bf16, ...")
        return found


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class dtype(metaclass=_ByName):
    """A scalar element type: one row with all its properties.

    `bits` is the width of the value, `storage_bits` its width in memory; `llvm` and `ptx` are the types that hold it
    in registers and that instructions (cvt, mma) name, "" if PTX does not convert it. `array_names` are further names
    of it in array libraries."""

    # The names of the types of each kind.
    SINT_TYPES: ClassVar[list[str]] = ["int8", "int16", "int32", "int64"]
    UINT_TYPES: ClassVar[list[str]] = ["int1", "uint8", "uint16", "uint32", "uint64"]
    STANDARD_FP_TYPES: ClassVar[list[str]] = ["fp16", "bf16", "fp32", "fp64"]
    FP_TYPES: ClassVar[list[str]] = [
        "fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", *STANDARD_FP_TYPES
    ]  # fmt: skip
    OTHER_TYPES: ClassVar[list[str]] = ["void"]
    SIGNEDNESS: ClassVar[type[Signedness]] = Signedness
    KIND: ClassVar[type[Kind]] = Kind

    name: str
    short: str
    bits: int
    kind_: Kind
    signed: bool = True
    mantissa: int = 0
    bias: int = 0
    _text: str = field(default="", compare=False)
    nans: NanEncoding = NanEncoding.IEEE
    llvm: str = ""
    ptx: str = ""
    array_names: tuple[str, ...] = ()

    # --- what it is -------------------------------------------------------------------------------
    @property
    def primitive_bitwidth(self) -> int:
        return self.bits

    int_bitwidth = primitive_bitwidth

    @property
    def int_signedness(self) -> Signedness:
        """Whether an integer type has negative numbers; floats have no such attribute."""
        if not self.is_int():
            raise AttributeError(f"{self.name} is no integer type")
        return Signedness.SIGNED if self.signed else Signedness.UNSIGNED

    @property
    def storage_bits(self) -> int:
        return max(self.bits, 8)

    @property
    def itemsize(self) -> int:
        return self.bits // 8

    @property
    def storage_bytes(self) -> int:
        return self.storage_bits // 8

    @property
    def scalar(self) -> dtype:
        return self

    @property
    def fp_mantissa_width(self) -> int:
        return self.mantissa

    @property
    def exponent_bias(self) -> int:
        return self.bias

    @property
    def largest_code(self) -> int:
        """The bits of the largest finite number of a floating-point type."""
        ones = (1 << (self.bits - 1)) - 1
        if self.nans is NanEncoding.NEGATIVE_ZERO:
            return ones
        return ones - (1 << self.mantissa if self.nans is NanEncoding.IEEE else 1)

    @property
    def largest(self) -> float:
        """The largest finite number of a floating-point type."""
        exponent, fraction = divmod(self.largest_code, 1 << self.mantissa)
        return (1 + fraction / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias)

    @property
    def nan_code(self) -> int:
        """The bits that casts to an 8-bit float write for a NaN; where none stands for one, the largest number's."""
        if self.nans is NanEncoding.NONE:
            return self.largest_code
        sign = 1 << (self.bits - 1)
        return sign if self.nans is NanEncoding.NEGATIVE_ZERO else sign - 1

    def is_floating(self) -> bool:
        return self.kind_ is Kind.FLOATING

    def is_standard_floating(self) -> bool:
        return self.is_floating() and self.bits >= 16

    def is_fp8(self) -> bool:
        return self.is_floating() and self.bits == 8

    def is_int(self) -> bool:
        return self.kind_ is not Kind.FLOATING and self.name != "void"

    def is_int_signed(self) -> bool:
        return self.is_int() and self.signed

    def is_int_unsigned(self) -> bool:
        return self.is_int() and not self.signed

    def is_bool(self) -> bool:
        return self.bits == 1

    def is_ptr(self) -> bool:
        return False

    def is_block(self) -> bool:
        return False

    def is_const(self) -> bool:
        return False

    def is_void(self) -> bool:
        return self.name == "void"

    def kind(self) -> Kind:
        return self.kind_

    def get_int_max_value(self) -> int:
        return (1 << (self.bits - (1 if self.signed else 0))) - 1

    def get_int_min_value(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    def with_element_ty(self, element_ty: dtype) -> dtype:
        return element_ty

    @property
    def element_ty(self) -> dtype:
        return self

    def codegen_name(self) -> str:
        return self.name

    def mangle(self) -> str:
        return self.short

    def __eq__(self, other: object) -> bool:
        # A constexpr that holds a dtype compares as the dtype.
        return self is other or (
            not isinstance(other, dtype) and self is getattr(other, "value", other)
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tessera.language.{self._text or self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (by_short_name, (self.short,))

    def __getattr__(self, attribute: str) -> Any:
        # is_fp16(), is_int32(), is_uint8() ...: one test per type name
        if TYPE_TEST.fullmatch(attribute):
            return lambda: attribute[3:] == self.name
        raise AttributeError(f"dtype has no attribute {attribute!r}")


def _int(bits: int, signed: bool) -> dtype:
    u = "" if signed else "u"
    names = f"{u}int{bits}", f"{u or 'i'}{bits}"
    return dtype(*names, bits, Kind.INTEGRAL, signed, llvm=f"i{bits}", ptx=f"{u or 's'}{bits}")


def _float(name: str, text: str, bits: int, mantissa: int, bias: int, *about: object) -> dtype:
    return dtype(name, name, bits, Kind.FLOATING, True, mantissa, bias, text, *about)


_IEEE, _ONES, _ZERO, _NONE = NanEncoding
void = dtype("void", "void", 0, Kind.INTEGRAL)
int1 = dtype("int1", "i1", 1, Kind.BOOLEAN, False, llvm="i1", array_names=("bool", "bool_"))
int8, int16, int32, int64 = (_int(b, True) for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_int(b, False) for b in (8, 16, 32, 64))
# name, name in `tl`, bits, mantissa, bias, NaN, LLVM, PTX, array libraries
float8e4nv = _float("fp8e4nv", "float8e4nv", 8, 3, 7, _ONES, "i8", "e4m3", ("float8_e4m3fn",))
float8e5 = _float("fp8e5", "float8e5", 8, 2, 15, _IEEE, "i8", "e5m2", ("float8_e5m2",))
float8e4b8 = _float("fp8e4b8", "float8e4b8", 8, 3, 8, _ZERO, "i8", "", ("float8_e4m3fnuz",))
float8e5b16 = _float("fp8e5b16", "float8e5b16", 8, 2, 16, _ZERO, "i8", "", ("float8_e5m2fnuz",))
float8e4b15 = _float("fp8e4b15", "float8e4b15", 8, 3, 15, _NONE, "i8", "", ())
float16 = _float("fp16", "float16", 16, 10, 15, _IEEE, "half", "f16", ("half", "float16"))
bfloat16 = _float("bf16", "bfloat16", 16, 7, 127, _IEEE, "bfloat", "bf16", ("bfloat16",))
float32 = _float("fp32", "float32", 32, 23, 127, _IEEE, "float", "f32", ("float", "float32"))
float64 = _float("fp64", "float64", 64, 52, 1023, _IEEE, "double", "f64", ("double", "float64"))

SIGNED_INTS = (int8, int16, int32, int64)
UNSIGNED_INTS = (int1, uint8, uint16, uint32, uint64)
FP8 = (float8e4nv, float8e5, float8e4b8, float8e5b16, float8e4b15)
FLOATS = (*FP8, float16, bfloat16, float32, float64)
ALL_DTYPES = (*UNSIGNED_INTS, *SIGNED_INTS, *FLOATS)

_BY_SHORT = {d.short: d for d in (void, *ALL_DTYPES)} | {"u1": int1}

_BY_ARRAY_NAME = {name: d for d in ALL_DTYPES for name in (d.name, *d.array_names)}


def by_short_name(short: str) -> dtype:
    """Return the dtype of a signature name such as "fp16", "i32", "u1". Raises KeyError if there is none."""
    return _BY_SHORT[short]


def by_array_name(name: str) -> dtype | None:
    """Return the dtype for `str(array.dtype)` of NumPy, torch, jax...; only the part after the last dot matters."""
    return _BY_ARRAY_NAME.get(name.rsplit(".", 1)[-1])


class _Compound:
    """Common base of pointers and blocks: the text of their name, and False for the `is_...` tests of scalars."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __getattr__(self, attribute: str) -> Any:
        if TYPE_TEST.fullmatch(attribute) or (
            attribute.startswith("is_") and hasattr(dtype, attribute)
        ):
            return lambda: False
        raise AttributeError(f"{type(self).__name__} has no attribute {attribute!r}")


@dataclass(frozen=True, slots=True, repr=False)
class pointer_type(_Compound):
    """A pointer to `element_ty` in global memory (address space 1)."""

    element_ty: Any  # dtype, or another pointer_type
    address_space: int = 1
    const: bool = False

    bits = 64
    primitive_bitwidth = 64
    storage_bits = 64
    storage_bytes = 8
    itemsize = 8

    @property
    def short(self) -> str:
        return f"*{'k' if self.const else ''}{self.element_ty.short}"

    @property
    def name(self) -> str:
        return f"{'const_' if self.const else ''}pointer<{self.element_ty}>"

    @property
    def scalar(self) -> pointer_type:
        return self

    def is_ptr(self) -> bool:
        return True

    def is_const(self) -> bool:
        return self.const

    def with_element_ty(self, element_ty: object) -> Any:
        return element_ty

    def mangle(self) -> str:
        return "P" + self.element_ty.mangle()


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@dataclass(frozen=True, slots=True, repr=False, init=False)
class block_type(_Compound):
    """The `x.type` of a tile in a kernel: its element type and its shape (ints)."""

    element_ty: Any
    shape: tuple[int, ...]

    def __init__(self, element_ty: Any, shape: Sequence[int]) -> None:
        dims = tuple(int(getattr(s, "value", s)) for s in shape)
        if not dims:
            raise TypeError("0d block_type is forbidden")
        object.__setattr__(self, "element_ty", element_ty)
        object.__setattr__(self, "shape", dims)

    @property
    def scalar(self) -> Any:
        return self.element_ty

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def is_block(self) -> bool:
        return True

    def is_ptr(self) -> bool:
        return False

    def get_block_shapes(self) -> tuple[int, ...]:
        return self.shape

    def with_element_ty(self, element_ty: object) -> block_type:
        return block_type(element_ty, self.shape)

    @property
    def name(self) -> str:
        return f"<{list(self.shape)}, {self.element_ty}>"

    def mangle(self) -> str:
        return f"{self.element_ty.mangle()}S{'_'.join(map(str, self.shape))}S"


def parse_scalar_type(text: str) -> Any:
    """Return the dtype or pointer_type of `fp32`, `*fp16`, `*ki8`, `**i32`. Raises ValueError for other text."""
    if text.startswith("*"):
        const = text.startswith("*k")
        return pointer_type(parse_scalar_type(text[2 if const else 1 :]), const=const)
    try:
        return _BY_SHORT[text]
    except KeyError:
        raise ValueError(f"{text!r} is not a type of a kernel signature") from None


pi32_t = pointer_type(int32)
