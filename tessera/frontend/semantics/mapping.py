"""Implements operations that apply the kernel's own function or instruction to each element."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tessera.dtypes import dtype as dtype_class
from tessera.dtypes import is_power_of_two
from tessera.errors import (
    InvalidArgument,
    ShapeMismatch,
    TypeMismatch,
    UnsupportedLanguageConstruct,
)
from tessera.frontend.semantics.elementwise import as_dtype
from tessera.frontend.semantics.libdevice import backend_of
from tessera.frontend.semantics.math import binary, compare
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.shape import join, reshape
from tessera.frontend.semantics.values import (
    broadcast_to,
    broadcast_values,
    elem,
    operand_of,
    sequence,
    shape,
    static,
    static_int,
    tile,
    to_value,
    wrap,
)  # fmt: skip
from tessera.frontend.semantics.vectorize import Vectorizer
from tessera.ir import Value
from tessera.language import creation
from tessera.language import hints as tl
from tessera.language.assembly import Assembly
from tessera.language.callable import JITCallable
from tessera.language.extra import libdevice
from tessera.language.values import tensor
from tessera.language.values import tuple as tl_tuple
from tessera.ops import InlineAsmOp, SplitOp, VolatileAsmOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd


# --- assembly ------------------------------------------------------------------------------------------------------
@impl(tl.inline_asm_elementwise)
def inline_asm_elementwise_impl(
    fe: FrontEnd, asm: object, constraints: object, args: object, dtype: object, is_pure: object, pack: object
) -> tl_tuple | tensor:  # fmt: skip
    text, rules = static(asm, "asm"), static(constraints, "constraints")
    several = isinstance(dtype, (tl_tuple, tuple, list))
    kinds = [as_dtype(d, "inline_asm_elementwise") for d in sequence(dtype)]
    if not kinds:
        raise InvalidArgument(
            "inline_asm_elementwise must have at least one output", argument="dtype", help="name its dtype"
        )  # fmt: skip
    values = [to_value(fe, operand_of(a)) for a in sequence(args)]
    values = broadcast_values(fe, values) if values else []
    dims = shape(values[0]) if values else ()
    count = static_int(pack, "pack")
    if fe.options.backend_name != "cuda" or backend_of(fe) == "simt":
        wholes = _translated(fe, text, rules, values, kinds, count)
        return tl_tuple(wholes) if several else wholes[0]
    op_class = InlineAsmOp if static(is_pure, "is_pure") else VolatileAsmOp
    types = tuple(tile(dims, k) for k in kinds)
    op = op_class(values, asm=text, constraints=rules, pack=count, results=types)
    results = [wrap(v) for v in fe.builder.insert(op).results]
    return tl_tuple(results) if several else results[0]


def _translated(
    fe: FrontEnd, text: str, rules: str, values: Sequence[Value], kinds: Sequence[Any], count: int
) -> list[tensor]:
    """Run assembly by the operations of the language. Elements that lack neighbours stand for theirs as well."""
    dims = shape(values[0]) if values else ()
    alone = not dims or dims[-1] % count != 0
    given = [[v] * count if alone else _neighbours(fe, v, count) for v in values]
    run = Assembly(text, rules, kinds, count, fe.call, partial(binary, fe), partial(compare, fe))
    part = shape(given[0][0]) if given else ()
    found = run.run([[wrap(v) for v in vs] for vs in given])
    each = [[broadcast_to(fe, to_value(fe, operand_of(x)), part) for x in xs] for xs in found]
    return [wrap(vs[0] if alone else _interleaved(fe, vs, dims)) for vs in each]


# --- functions of scalars ----------------------------------------------------------------------------------------
@impl(tl.map_elementwise)
def map_elementwise_impl(
    fe: FrontEnd, scalar_fn: object, *args: object, pack: object = 1
) -> tensor | tl_tuple:
    fn, count = static(scalar_fn, "scalar_fn"), static_int(pack, "pack")
    if not isinstance(fn, JITCallable):
        raise TypeMismatch(
            f"map_elementwise() takes a jitted function, got {fn!r}", help="put `@tessera.jit` on it"
        )  # fmt: skip
    if not args:
        raise InvalidArgument(
            "map_elementwise() needs at least one tensor", help="write `tl.map_elementwise(f, x, ...)`"
        )  # fmt: skip
    values = broadcast_values(fe, [to_value(fe, operand_of(a)) for a in args])
    dims = shape(values[0])
    if not is_power_of_two(count) or (dims and dims[-1] % count) or (not dims and count != 1):
        raise ShapeMismatch(
            f"pack={count} does not divide the last extent of {list(dims)}", help="pack is a power of two"
        )  # fmt: skip
    parts = [p for v in values for p in _neighbours(fe, v, count)]
    results = _mapped(fe, fn, parts)
    if len(results) % count:
        raise TypeMismatch(
            f"the function of map_elementwise() returns {len(results)} values, not a multiple of pack={count}",
            help="with `pack` it gets that many neighbours of each operand, and returns as many of each result",
        )
    whole = [
        wrap(_interleaved(fe, results[i : i + count], dims)) for i in range(0, len(results), count)
    ]
    return whole[0] if len(whole) == 1 else tl_tuple(whole)


def _mapped(fe: FrontEnd, fn: JITCallable, values: Sequence[Value]) -> list[Value]:
    dims = shape(values[0])
    if not dims:
        result = fe.call(fn, [wrap(v) for v in values])
        return [to_value(fe, operand_of(x)) for x in sequence(result)]
    block = fe.call_block(fn, [elem(v) for v in values])
    return Vectorizer(fe, dims).run(block, values)


def _neighbours(fe: FrontEnd, v: Value, count: int) -> list[Value]:
    """Return elements 0, 1, … of each group of `count` along the last dimension."""
    if count == 1:
        return [v]
    pairs = reshape(fe, v, (*shape(v)[:-1], shape(v)[-1] // 2, 2))
    even, odd = fe.builder.insert(SplitOp(pairs)).results
    left, right = _neighbours(fe, even, count // 2), _neighbours(fe, odd, count // 2)
    return [x for pair in zip(left, right, strict=True) for x in pair]


def _interleaved(fe: FrontEnd, parts: Sequence[Value], dims: tuple[int, ...]) -> Value:
    """Invert `_neighbours`."""
    if len(parts) == 1:
        return parts[0]
    even, odd = (_interleaved(fe, parts[i::2], dims) for i in (0, 1))
    both = join(fe, even, odd)
    return reshape(fe, both, (*shape(even)[:-1], shape(even)[-1] * 2) if shape(even) else dims)


# --- device libraries ----------------------------------------------------------------------------------------------
@impl(tl.extern_elementwise)
def extern_elementwise_impl(
    fe: FrontEnd, lib_name: object, lib_path: object, args: object, arg_type_symbol_dict: object, is_pure: object
) -> Any:  # fmt: skip
    values = [to_value(fe, operand_of(a)) for a in sequence(args)]
    table: Any = static(arg_type_symbol_dict, "arg_type_symbol_dict")
    wanted = tuple(elem(v) for v in values)
    found: Any = table.get(wanted) if hasattr(table, "get") else None
    if found is None:
        raise TypeMismatch(
            f"the library {static(lib_name, 'lib_name')!r} has no function for operands of "
            f"({', '.join(str(e) for e in wanted)})",
            help="cast the operands to the types that a function of the library takes",
        )
    symbol, result = found
    fn = getattr(libdevice, _plain(symbol), None)
    if not symbol.startswith("__nv_") or fn is None:
        raise UnsupportedLanguageConstruct(
            f"the function {symbol!r} of the library {static(lib_name, 'lib_name')!r} is not known: "
            "no bitcode is linked",
            help="use tl.extra.libdevice, or write the function in the language",
        )
    value = fe.call(fn, [wrap(v) for v in broadcast_values(fe, values)])
    assert isinstance(result, dtype_class)
    return fe.call(creation.cast, [value, result])


def _plain(symbol: str) -> str:
    """Return `sin` for `__nv_sinf`: the name of a symbol in libdevice.py."""
    name = symbol.removeprefix("__nv_")
    return name if hasattr(libdevice, name) else name.removesuffix("f").removesuffix("d")
