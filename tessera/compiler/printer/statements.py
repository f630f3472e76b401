"""Writes ops other than element-wise ones: tiles, memory, control flow. There is one writer for each class of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.compiler.printer.expressions import ATOM, NoSource, Text, joint, type_text, typed
from tessera.compiler.printer.functions import NAMES, Function, Write
from tessera.dtypes import int32
from tessera.ir import Op, Value, elem_of, shape_of
from tessera.ops import control, memory, tile


def _plain(template: str) -> Write:
    """Return the writer of an op whose text depends only on its attributes."""

    def write(f: Function, op: Op) -> None:
        f.keep(op.result, Text(template.format(**op.attrs), ATOM, shape_of(op.result.type)))

    return write


def _arange(f: Function, op: tile.ArangeOp) -> None:
    f.keep(op.result, Text(f"tl.arange({op.start}, {op.end})", ATOM, shape_of(op.result.type)))


def _expand_dims(f: Function, op: tile.ExpandDimsOp) -> None:
    x = f.texts[op.x]
    if not x.shape:  # a number for all elements
        f.texts[op.result] = x
        return
    at = [":"] * len(x.shape)
    at.insert(op.axis, "None")
    shape = (*x.shape[: op.axis], 1, *x.shape[op.axis :])
    f.keep(op.result, Text(f"{x.within(ATOM)}[{', '.join(at)}]", ATOM, shape))


def _rearranged(call: Callable[[Op, str], str]) -> Write:
    """Return the writer of an op on the whole of its operand."""

    def write(f: Function, op: Op) -> None:
        text = call(op, f.whole(op.operands[0]).text)
        f.keep(op.result, Text(text, ATOM, shape_of(op.result.type)))

    return write


def _split(f: Function, op: tile.SplitOp) -> None:
    names = [f.name("half") for _ in op.results]
    f.line(f"{', '.join(names)} = tl.split({f.whole(op.x).text})")
    for v, n in zip(op.results, names, strict=True):
        f.texts[v] = Text(n, ATOM, shape_of(v.type))


def _join(f: Function, op: tile.JoinOp) -> None:
    both = f"{f.whole(op.lhs).text}, {f.whole(op.rhs).text}"
    f.keep(op.result, Text(f"tl.join({both})", ATOM, shape_of(op.result.type)))


def _gather(f: Function, op: tile.GatherOp) -> None:
    text = f"tl.gather({f.whole(op.x).text}, {f.whole(op.index).text}, {op.axis})"
    f.keep(op.result, Text(text, ATOM, shape_of(op.result.type)))


def _histogram(f: Function, op: tile.HistogramOp) -> None:
    mask = [] if op.mask is None else [f"mask={f.whole(op.mask).text}"]
    parts = [f.whole(op.x).text, str(op.bins), *mask]
    f.keep(op.result, Text(f"tl.histogram({', '.join(parts)})", ATOM, (op.bins,)))


def _dot(f: Function, op: tile.DotOp) -> None:
    e = elem_of(op.acc.type)
    parts = [f.whole(v).text for v in (op.a, op.b, op.acc)]
    parts.append(f'input_precision="{op.precision}"')
    if op.max_imprecise:
        parts.append(f"max_num_imprecise_acc={op.max_imprecise}")
    parts.append(f"out_dtype={type_text(e)}")
    f.keep(op.result, Text(f"tl.dot({', '.join(parts)})", ATOM, shape_of(op.result.type)))


def _combine(f: Function, op: tile.CombineOp) -> None:
    inputs = [f.whole(v).text for v in op.inputs]
    given = inputs[0] if len(inputs) == 1 else f"({', '.join(inputs)})"
    name = f.combine(op.combine)
    function, more = "reduce", ""
    if isinstance(op, tile.ScanOp):
        function, more = "associative_scan", ", reverse=True" if op.reverse else ""
    text = f"tl.{function}({given}, {op.axis}, {name}{more})"
    shapes = [shape_of(v.type) for v in op.results]
    if len(op.results) == 1:
        f.keep(op.result, Text(text, ATOM, shapes[0]))
        return
    names = [f.name(NAMES[op.opcode]) for _ in op.results]
    f.line(f"{', '.join(names)} = {text}")
    f.texts.update((v, Text(n, ATOM, s)) for v, n, s in zip(op.results, names, shapes, strict=True))


def _pointer(f: Function, v: Value, others: Sequence[Value | None], whole: bool) -> Text:
    """Return the pointer of an access, which may stay a scalar only if all operands are scalars."""
    p = f.texts[v]
    wide = whole or any(f.texts[o].shape for o in others if o is not None)
    return f.whole(v) if wide and not p.shape else (f.whole(v) if whole else p)


def _load(f: Function, op: memory.LoadOp) -> None:
    p = _pointer(f, op.ptr, (op.mask, op.other), op.volatile)
    given = [f.texts[v] for v in (op.mask, op.other) if v is not None]
    parts = [p.text, *f.optional(op.mask, "mask"), *f.optional(op.other, "other")]
    parts += [f'cache_modifier="{op.cache}"'] if op.cache else []
    parts += [f'eviction_policy="{op.eviction}"'] if op.eviction else []
    parts += ["volatile=True"] if op.volatile else []
    text = Text(f"tl.load({', '.join(parts)})", ATOM, joint([p, *given]))
    f.texts[op.result] = f.named(op.result, text)


def _store(f: Function, op: memory.StoreOp) -> None:
    value = f.texts[op.value]
    parts = [f.whole(op.ptr).text, value.text, *f.optional(op.mask, "mask")]
    parts += [f'cache_modifier="{op.cache}"'] if op.cache else []
    parts += [f'eviction_policy="{op.eviction}"'] if op.eviction else []
    f.line(f"tl.store({', '.join(parts)})")


def _atomic(f: Function, op: memory.AtomicRmwOp) -> None:
    parts = [f.whole(op.ptr).text, f.texts[op.value].text, *f.optional(op.mask, "mask")]
    _finish_atomic(f, op, f"tl.atomic_{op.kind}({', '.join([*parts, *_ordering(op)])})")


def _atomic_cas(f: Function, op: memory.AtomicCasOp) -> None:
    parts = [f.whole(v).text for v in (op.ptr, op.expected, op.value)]
    _finish_atomic(f, op, f"tl.atomic_cas({', '.join([*parts, *_ordering(op)])})")


def _ordering(op: memory.AtomicRmwOp | memory.AtomicCasOp) -> list[str]:
    return [f'sem="{op.sem}"', f'scope="{op.scope}"']


def _finish_atomic(f: Function, op: Op, text: str) -> None:
    if not op.result.uses:
        f.line(text)
        return
    f.texts[op.result] = f.named(op.result, Text(text, ATOM, shape_of(op.result.type)), "old")


def _for(f: Function, op: control.ForOp) -> None:
    names = f.carried(op.carried)
    f.assign(names, op.inits)
    for k, v in enumerate(op.carried):
        f.texts[v] = Text(names[k], ATOM, shape_of(v.type))
    counter = f.name(op.induction.name or "k")
    f.texts[op.induction] = Text(counter)
    f.line(f"for {counter} in {_range(f, op)}:")
    f.nested(op.body, names)
    f.texts.update(
        (v, Text(n, ATOM, shape_of(v.type))) for v, n in zip(op.results, names, strict=True)
    )


def _range(f: Function, op: control.ForOp) -> str:
    e = op.lb.type
    bounds = [f.texts[v] if e is int32 else typed(f.texts[v], e) for v in (op.lb, op.ub, op.step)]
    texts = [t.text for t in bounds]
    if bounds[2].number == 1 or texts[2] == f"tl.full([], 1, {type_text(e)})":
        texts.pop()
    hints = [
        f"{k}={op.attrs[k]}"
        for k in (
            "num_stages",
            "flatten",
            "warp_specialize",
            "disallow_acc_multi_buffer",
            "disable_licm",
        )
        if op.attrs.get(k)
    ]
    if op.unroll is not None:
        hints.append(f"loop_unroll_factor={op.unroll}")
    return f"{'tl.range' if hints else 'range'}({', '.join([*texts, *hints])})"


def _if(f: Function, op: control.IfOp) -> None:
    names = f.carried(op.results, "t")
    f.line(f"if {typed(f.texts[op.condition], elem_of(op.condition.type)).text}:")
    f.nested(op.then, names)
    if names or len(list(op.orelse)) > 1:
        f.line("else:")
        f.nested(op.orelse, names)
    f.texts.update(
        (v, Text(n, ATOM, shape_of(v.type))) for v, n in zip(op.results, names, strict=True)
    )


def _descriptor(f: Function, op: memory.MakeDescriptorOp) -> None:
    shape = ", ".join(f.texts[v].text for v in op.shape)
    strides = ", ".join([*(f.texts[v].text for v in op.strides[:-1]), "1"])  # as the op demands
    parts = [f.texts[op.base].text, f"[{shape}]", f"[{strides}]", str(list(op.block_shape))]
    parts += [f'padding_option="{op.padding}"'] if op.padding != "zero" else []
    text = Text(f"tl.make_tensor_descriptor({', '.join(parts)})")
    f.texts[op.result] = f.named(op.result, text)


def _descriptor_load(f: Function, op: memory.DescriptorLoadOp) -> None:
    if op.dropped or op.ctas != 1:
        raise NoSource("a load that the compiler has changed has no form in the language")
    at = ", ".join(f.texts[v].text for v in op.offsets)
    text = Text(f"{f.texts[op.desc].text}.load([{at}])", ATOM, shape_of(op.result.type))
    f.texts[op.result] = f.named(op.result, text, "x")


def _descriptor_store(f: Function, op: memory.DescriptorStoreOp) -> None:
    at = ", ".join(f.texts[v].text for v in op.offsets)
    method = "store" if op.kind == "store" else f"atomic_{op.kind}"
    f.line(f"{f.texts[op.desc].text}.{method}([{at}], {f.whole(op.value).text})")


def _statement(template: str) -> Write:
    """Return the writer of an op without results that takes a condition."""

    def write(f: Function, op: Op) -> None:
        condition = f.texts[op.operands[0]].text if op.operands else ""
        f.line(template.format(condition, repr(op.attrs.get("message", ""))))

    return write


WRITERS: dict[type[Op], Write] = {
    tile.ProgramIdOp: _plain("tl.program_id({axis})"),
    tile.NumProgramsOp: _plain("tl.num_programs({axis})"),
    tile.ArangeOp: _arange, tile.ExpandDimsOp: _expand_dims, tile.SplitOp: _split, tile.JoinOp: _join,
    tile.ReshapeOp: _rearranged(lambda op, x: f"tl.reshape({x}, {list(shape_of(op.result.type))})"),
    tile.TransOp: _rearranged(lambda op, x: f"tl.permute({x}, {list(op.attrs['order'])})"),
    tile.GatherOp: _gather, tile.HistogramOp: _histogram, tile.DotOp: _dot, tile.ReduceOp: _combine,
    tile.ScanOp: _combine, memory.LoadOp: _load, memory.StoreOp: _store, memory.AtomicRmwOp: _atomic,
    memory.AtomicCasOp: _atomic_cas, control.ForOp: _for, control.IfOp: _if,
    memory.MakeDescriptorOp: _descriptor, memory.DescriptorLoadOp: _descriptor_load,
    memory.DescriptorStoreOp: _descriptor_store, memory.AssumeOp: _statement("tl.assume({0})"),
    memory.AssertOp: _statement("tl.device_assert({0}, {1})"), memory.BarrierOp: _statement("tl.debug_barrier()"),
}  # fmt: skip
