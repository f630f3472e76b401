"""Lowers what a kernel prints and asserts."""

from __future__ import annotations

from tessera.backends.elements.casts import cast
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import groups, layout_of
from tessera.backends.gpu.packing import as_bits
from tessera.backends.gpu.types import llvm_type
from tessera.dtypes import float64, int1, int32, pointer_type, uint32
from tessera.ir import ElementType, TileType, elem_of
from tessera.layout.linear import LinearLayout
from tessera.ops import AssertOp, PrintOp


@lowers(PrintOp)
def _print(fl: FunctionLowering, op: PrintOp) -> None:
    """Print `pid (x, y, z) idx (i, j) prefix: value`, a line for each element, which one thread prints."""
    w = fl.w
    pids = [("i32", fl.target.program_id(w, axis)) for axis in range(3)]
    if not op.args:
        with w.when(fl.owner_mask(None)):
            fl.target.print(w, f"pid (%u, %u, %u){_literal(op.prefix)}\n", pids)
        return
    for k, v in enumerate(op.args):
        layout = layout_of(v)
        label = _literal(op.label(k))
        where = ", ".join(f"%{n or ''}u" for n in op.widths(k))
        names = fl.get(v)
        nowhere: list[list[str]] = [[]] * len(names)
        indices = _indices(fl, layout, v.type) if layout is not None else nowhere
        owner = fl.owner_mask(layout)
        for i in groups(layout, len(names), 1):
            form, value = _format(fl, elem_of(v.type), names[i], op.hex)
            text = f"pid (%u, %u, %u) idx ({where}){label}{form}\n"
            args = [*pids, *[("i32", x) for x in indices[i]], value]
            if owner == "true":
                fl.target.print(w, text, args)
                continue
            with w.when(owner):
                fl.target.print(w, text, args)


def _literal(text: str) -> str:
    """Return a text escaped for a printf format."""
    return text.replace("%", "%%")


def _indices(fl: FunctionLowering, layout: LinearLayout, t: TileType) -> list[list[str]]:
    """Return the coordinates of each register's element."""
    per_dim: list[list[str]] = []
    for d in range(len(t.shape)):
        columns = [[b[d] for b in layout.bases(name)] for name in ("register", "lane", "warp")]
        per_dim.append(fl.element_offsets(*columns))
    return [list(row) for row in zip(*per_dim)]


def _format(
    fl: FunctionLowering, elem: ElementType, x: str, hexadecimal: bool
) -> tuple[str, tuple[str, str]]:
    """Return printf's conversion, and the value in the type that it reads."""
    if isinstance(elem, pointer_type):
        return "%p", (llvm_type(elem), x)
    if hexadecimal and elem is not int1:
        bits, t = as_bits(fl, elem, x), f"i{elem.bits}"
        if elem.bits < 32:
            bits, t = fl.w.pure(f"zext {t} {bits} to i32"), "i32"
        return f"0x%0{elem.bits // 4}{'ll' if elem.bits == 64 else ''}x", (t, bits)
    if elem.is_floating():
        wide = x if elem is float64 else cast(fl.scalars, x, elem, float64)
        return "%f", ("double", wide)
    if elem.bits == 64:
        return "%lli" if elem.signed else "%llu", ("i64", x)
    target = int32 if elem.signed else uint32
    return "%i" if elem.signed else "%u", (
        "i32",
        x if elem.bits == 32 else cast(fl.scalars, x, elem, target),
    )


@lowers(AssertOp)
def _assert(fl: FunctionLowering, op: AssertOp) -> None:
    """Let threads in which an element is false report the source line and stop the grid."""
    w = fl.w
    holds, together = "true", dict[tuple[str, int], str]()
    for x in dict.fromkeys(fl.get(op.condition)):
        t, value, end = w.below.get(x, ("", "", 0))
        if end.bit_count() == 1:  # all are below a power of two if their bits together are
            bits = together.get((t, end))
            together[t, end] = w.pure(f"or {t} {bits}, {value}") if bits else value
        else:
            holds = w.and_("i1", holds, x)
    for (t, end), value in together.items():
        holds = w.and_("i1", holds, w.pure(f"icmp ult {t} {value}, {end}"))
    if holds == "true":
        return
    failed = w.pure(f"xor i1 {holds}, true")
    with w.ending(failed):
        loc = op.loc
        place = (loc.file, loc.line, loc.function) if loc is not None else ("unknown", 0, "unknown")
        fl.target.assert_fail(w, op.message, *place)
        fl.target.trap(w)
