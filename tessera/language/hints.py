"""Loops, compiler hints, debugging and compile-time helpers."""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin


# --- loops --------------------------------------------------------------------------------------------
@builtin
def range(
    arg1: Any,
    arg2: Any = None,
    step: Any = None,
    num_stages: Any = None,
    loop_unroll_factor: Any = None,
    disallow_acc_multi_buffer: Any = False,
    flatten: Any = False,
    warp_specialize: Any = False,
    disable_licm: Any = False,
) -> Any:
    """Iterate like Python's range, with hints for the compiler; valid as the iterator of a `for` only.

    `num_stages`: depth of the software pipeline of this loop; `loop_unroll_factor`: bodies per iteration.
    """


@builtin
def static_range(arg1: Any, arg2: Any = None, step: Any = None) -> Any:
    """A `range` of compile-time ints that is unrolled; the variable is a constexpr."""


@builtin
def condition(arg1: Any, disable_licm: Any = False) -> Any:
    """The condition of a `while`, with a hint: `disable_licm` keeps invariant code inside the loop."""


# --- hints --------------------------------------------------------------------------------------------
@builtin
def multiple_of(input: Any, values: Any) -> Any:
    """`input` unchanged, with the promise that along dimension d contiguous runs start at multiples of `values[d]`.

    The values are compile-time ints, one a dimension; one int for 1-D tiles and scalars.
    """


@builtin
def max_contiguous(input: Any, values: Any) -> Any:
    """`input` unchanged, with the promise that aligned runs of `values[d]` elements in dimension d count up by one."""


@builtin
def max_constancy(input: Any, values: Any) -> Any:
    """`input` unchanged, with the promise that aligned runs of `values[d]` elements in dimension d are equal."""


@builtin
def assume(cond: Any) -> Any:
    """Promise that the int1 scalar `cond` is true.

    `tl.assume(start >= 0)` lets vectors of `(start + tl.arange(0, N)) % M` and `// M` stay whole: of arguments,
    differences and loaded numbers the compiler does not take that for granted, of program ids it does.
    """


@builtin
def debug_barrier() -> Any:
    """Let all threads of the program wait for one another."""


# --- debugging ----------------------------------------------------------------------------------------
@builtin
def device_print(prefix: Any, *args: Any, hex: Any = False) -> Any:
    """Print `prefix` (a string literal) and each element of `args` from the running kernel, one line an element."""


@builtin
def device_assert(cond: Any, msg: Any = "", mask: Any = None) -> Any:
    """In debug builds, stop with `msg` if an element of `cond` is 0 where `mask` holds."""


@builtin
def static_print(
    *values: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False
) -> Any:
    """Print compile-time values while the kernel is compiled."""


@builtin
def static_assert(cond: Any, msg: Any = "") -> Any:
    """Refuse to compile with `msg` unless the compile-time bool `cond` is true."""


# --- functions of elements -------------------------------------------------------------------------------
@builtin
def inline_asm_elementwise(
    asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any
) -> Any:
    """Apply assembly of the target (PTX on NVIDIA) to the elements of the broadcast `args`, `pack` at a time.

    `$0`, `$1`, … are the registers of the results, then of the operands, that the LLVM `constraints` name
    ("=r,r,r"). Elements below 32 bits go packed in 32-bit registers. `dtype` is the result's dtype, or a tuple of
    several results'. Assembly that is not `is_pure` is neither dropped nor merged. Other targets raise.
    """


@builtin
def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    """Apply a jitted function of scalars, which may branch and loop, to each element of the broadcast `args`.

    With `pack` n it gets n neighbours of the first argument, then n of the second, …, and returns n elements of each
    result, in that order. The result is a tensor, or a tuple if the function returns several (per element).
    """


@builtin
def extern_elementwise(
    lib_name: Any, lib_path: Any, args: Any, arg_type_symbol_dict: Any, is_pure: Any
) -> Any:
    """Apply a function of a device library by its symbol. Only NVIDIA's libdevice (`__nv_…`) is known, as
    `extra.libdevice`: other libraries raise, for no bitcode is linked."""
