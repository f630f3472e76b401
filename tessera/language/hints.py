"""Declares loops, compiler hints, debugging and compile-time helpers."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.builtin import builtin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tessera.dtypes import dtype as element_type
    from tessera.language.callable import JITCallable
    from tessera.language.kernel_typing import constexpr
    from tessera.language.operand_types import (
        BoolLike,
        Combined,
        DTypeLike,
        Index,
        IntLike,
        Ints,
        Mask,
        StrLike,
        TensorLike,
    )
    from tessera.language.values import tensor
    from tessera.language.values import tuple as tl_tuple

__all__ = [
    "assume", "condition", "debug_barrier", "device_assert", "device_print", "inline_asm_elementwise",
    "map_elementwise", "max_constancy", "max_contiguous", "multiple_of", "range", "static_assert", "static_print",
    "static_range",
]  # fmt: skip


# --- loops --------------------------------------------------------------------------------------------
@builtin
def range(
    arg1: Index,
    arg2: Index | None = None,
    step: Index | None = None,
    num_stages: IntLike | None = None,
    loop_unroll_factor: IntLike | None = None,
    disallow_acc_multi_buffer: BoolLike = False,
    flatten: BoolLike = False,
    warp_specialize: BoolLike = False,
    disable_licm: BoolLike = False,
) -> Iterator[tensor]:
    """The ints of Python's `range`, with hints for the compiler; valid as the iterator of a `for` only. Only a
    step known at compile time may be negative.

    `num_stages` is the depth of the software pipeline of this loop, `loop_unroll_factor` the number of bodies in an
    iteration; both are compile-time ints. With `warp_specialize` the compiler remarks where a loop does not get warps
    of its own for its loads, which it otherwise decides by itself. The other hints are accepted. No hint changes the
    result.

    Raises:
        type-mismatch: the step is 0: `for k in tl.range(0, 4, 0): tl.store(Z, k)`.
        type-mismatch: a bound is no integer scalar: `for k in tl.range(0, x): tl.store(Z, k)`.
        not-constexpr: a hint is known at run time only: `for k in tl.range(0, 4, num_stages=i): tl.store(Z, k)`.
        compilation: it is no iterator of a `for`: `tl.range(0, 4)`.

    Example:
        >>> r = 0
        >>> for k in tl.range(0, 10, num_stages=2):
        ...     r += k
        int32: 45
    """


@builtin
def static_range(
    arg1: Index, arg2: Index | None = None, step: Index | None = None
) -> Iterator[constexpr]:
    """A `range` of compile-time ints whose loop is unrolled; the loop variable is a constexpr.

    Raises:
        not-constexpr: a bound is known at run time only:
            `for k in tl.static_range(tl.num_programs(0)): tl.store(Z, k)`.
        type-mismatch: the step is 0: `for k in tl.static_range(0, 4, 0): tl.store(Z, k)`.

    Example:
        >>> r = tl.zeros_like(n)
        >>> for k in tl.static_range(3):
        ...     r += n << k
        int32[8]: 21, 7, 28, 7, 35, 63, 14, 42
    """


@builtin
def condition(arg1: TensorLike, disable_licm: BoolLike = False) -> tensor:
    """The condition of a `while`; the hint `disable_licm` is accepted.

    `arg1` is a scalar of any dtype.

    Raises:
        compilation: it is no condition of a `while`: `tl.condition(3)`.
        shape-mismatch: the condition has several elements: `while tl.condition(x > 0): tl.store(Z, 1)`.

    Example:
        >>> r = 1
        >>> while tl.condition(r < 100):
        ...     r *= 3
        int32: 243
    """


# --- hints --------------------------------------------------------------------------------------------
@builtin
def multiple_of(input: TensorLike, values: Ints) -> tensor:
    """`input` unchanged, with the promise that contiguous runs along dimension d start at multiples of `values[d]`.

    `values` are compile-time ints, one for each dimension, or one int for scalars and 1-D tiles; for pointers they
    count bytes, as in Triton. A promise that does not hold makes the result undefined.

    Raises:
        shape-mismatch: the number of values is not the rank: `tl.multiple_of(i, [1, 2])`.
        not-constexpr: a value is no compile-time int: `tl.multiple_of(i, n)`.

    Example:
        >>> tl.multiple_of(i, 8)
        int32[8]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def max_contiguous(input: TensorLike, values: Ints) -> tensor:
    """`input` unchanged, with the promise that aligned runs of `values[d]` elements along dimension d count up by one.

    `values` are as for `multiple_of`.

    Raises:
        shape-mismatch: the number of values is not the rank: `tl.max_contiguous(i, [1, 2])`.

    Example:
        >>> tl.max_contiguous(i, 8)
        int32[8]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def max_constancy(input: TensorLike, values: Ints) -> tensor:
    """`input` unchanged, with the promise that aligned runs of `values[d]` elements along dimension d are equal.

    `values` are as for `multiple_of`.

    Raises:
        shape-mismatch: the number of values is not the rank: `tl.max_constancy(i, [1, 2])`.

    Example:
        >>> tl.max_constancy(i // 4, 4)
        int32[8]: 0, 0, 0, 0, 1, 1, 1, 1
    """


@builtin
def assume(cond: TensorLike) -> None:
    """Promise that the int1 scalar `cond` is true.

    `tl.assume(start >= 0)` lets vectors of `(start + tl.arange(0, N)) % M` and `// M` stay whole: the compiler does
    not take that for granted of arguments, differences and loaded numbers; it does of program ids.

    Raises:
        type-mismatch: the condition is no int1 scalar: `tl.assume(x > 0)`.

    Example:
        >>> tl.assume(tl.num_programs(0) > 0)
        >>> i
        int32[8]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def debug_barrier() -> None:
    """All threads of the program wait for one another, and see each other's writes to memory.

    Example:
        >>> tl.store(Z + i, i)
        >>> tl.debug_barrier()
        >>> tl.load(Z + 7 - i)
        int32[8]: 7, 6, 5, 4, 3, 2, 1, 0
    """


# --- debugging ----------------------------------------------------------------------------------------
@builtin
def device_print(prefix: StrLike, *args: TensorLike, hex: BoolLike = False) -> None:
    """Print each element of `args` from the running kernel, one line for each, behind the string literal `prefix`.

    A line says the program's ids and the element's indices. `hex` prints numbers in base 16.

    Raises:
        not-constexpr: the prefix is no string literal: `tl.device_print(x)`.

    Example:
        >>> tl.device_print("x", x)
        >>> x
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 2, 3
    """


@builtin
def device_assert(cond: TensorLike, msg: StrLike = "", mask: Mask = None) -> None:
    """In debug builds, stop with `msg` if an element of `cond` is 0 where `mask` holds; else nothing.

    Debug builds are those with `debug=True` in the launch or in `@tessera.jit`, or with `TESSERA_DEBUG=1`; the launch
    then raises `device-assert`.

    Example:
        >>> tl.device_assert(n > 0, "positive")
        >>> n
        int32[8]: 3, 1, 4, 1, 5, 9, 2, 6
    """


@builtin
def static_print(
    *values: object,
    sep: StrLike = " ",
    end: StrLike = "\n",
    file: object = None,
    flush: BoolLike = False,
) -> None:
    """Print compile-time values while the kernel is compiled; of a tensor its dtype and shape.

    `sep`, `end`, `file` and `flush` are those of Python's `print`.

    Example:
        >>> tl.static_print("tile:", x)
        >>> x
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 2, 3
    """


@builtin
def static_assert(cond: BoolLike, msg: StrLike = "") -> None:
    """Refuse to compile, with `msg`, unless the compile-time bool `cond` is true.

    Raises:
        static-assert: the condition is false: `tl.static_assert(x.dtype == tl.int32, "want ints")`.
        not-constexpr: the condition is known at run time only: `tl.static_assert(n)`.

    Example:
        >>> tl.static_assert(x.dtype == tl.float32)
        >>> x
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 2, 3
    """


# --- functions of elements -------------------------------------------------------------------------------
@builtin
def inline_asm_elementwise(
    asm: StrLike,
    constraints: StrLike,
    args: Sequence[TensorLike] | tl_tuple,
    dtype: DTypeLike | Sequence[DTypeLike] | tl_tuple,
    is_pure: BoolLike,
    pack: IntLike,
) -> Combined:
    """Assembly (PTX) applied to the elements of the broadcast `args`, `pack` at a time.

    `$0`, `$1`, … are the registers of the results, then those of the operands, that the LLVM `constraints` name
    ("=r,r,r"). Elements below 32 bits are packed in 32-bit registers. `dtype` is the result's dtype, or a tuple of
    several results'; the shape is that of the operands. Assembly that is not `is_pure` is neither dropped nor merged.

    Where no NVIDIA GPU runs it (on CPUs, by the interpreter, in the simulator) PTX is run by operations of the
    language: moves, also of parts, integer and floating-point arithmetic with its rounding, comparisons, predicates,
    selections, shifts, `lop3`, `prmt`, `bfe`, `bfi`, `shf`, conversions, pairs of 16-bit floats. Approximate functions
    are as exact there as those of `tl`, and `.ftz` keeps subnormals. There is no such meaning for branches, memory
    and special registers.

    Source: PTX ISA, for the instructions; LLVM Language Reference, for the constraints.

    Raises:
        unsupported-syntax: an instruction has no meaning on the target:
            `tl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r,r", [n], tl.int32, True, 1)`.

    Example:
        >>> tl.inline_asm_elementwise("add.s32 $0, $1, $1;", "=r,r", [n], tl.int32, True, 1)
        int32[8]: 6, 2, 8, 2, 10, 18, 4, 12
    """


@builtin
def map_elementwise(scalar_fn: JITCallable, *args: TensorLike, pack: IntLike = 1) -> Combined:
    """A jitted function of scalars, which may branch and loop, applied to each element of the broadcast `args`.

    With `pack` n it gets n neighbours of the first argument, then n of the second, …, and returns n elements of each
    result, in that order. The result is a tile, or a tuple if the function returns several (for each element), of the
    dtypes that it returns.

    Raises:
        type-mismatch: it is no jitted function: `tl.map_elementwise(3, x)`.
        invalid-argument: there are no tensors: `tl.map_elementwise(root_or_zero)`.
        compilation: the function takes another number of arguments: `tl.map_elementwise(root_or_zero, x, i)`.

    Example:
        >>> tl.map_elementwise(root_or_zero, x)
        fp32[8]: 0, 0, 0, 0, 0.707107, 1, 1.41421, 1.73205
    """


@builtin
def extern_elementwise(
    lib_name: StrLike,
    lib_path: StrLike,
    args: Sequence[TensorLike] | tl_tuple,
    arg_type_symbol_dict: Mapping[tuple[element_type, ...], tuple[str, element_type]] | constexpr,
    is_pure: BoolLike,
) -> tensor:
    """Apply a function of a device library by its symbol. Only NVIDIA's libdevice (`__nv_…`) is known, as
    `extra.libdevice`: other libraries raise, for no bitcode is linked."""
