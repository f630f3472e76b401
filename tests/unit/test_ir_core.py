"""Use lists, segments, positions, cloning and erasing."""

from __future__ import annotations

import pytest

from tessera.dtypes import float32, int1, int32, pointer_type
from tessera.errors import Loc, TesseraError
from tessera.ir import (
    Block,
    Builder,
    Effect,
    Module,
    Op,
    TileType,
    Value,
    attr,
    operand,
    print_module,
    verify,
)
from tessera.ops import (
    AddOp,
    ConstOp,
    ForOp,
    FuncOp,
    IfOp,
    LoadOp,
    MulOp,
    PrintOp,
    ReturnOp,
    StoreOp,
    YieldOp,
)


class Kernel:
    def __init__(self) -> None:
        self.module = Module()
        self.func = FuncOp(name="k")
        self.module.body.append(self.func)
        self.b = Builder(self.func.body)

    def arg(self, type: object, name: str) -> Value:
        return self.func.body.add_arg(type, name)

    @property
    def opcodes(self) -> list[str]:
        return [op.opcode for op in self.func.body]


def test_every_use_is_listed_once() -> None:
    k = Kernel()
    x, y = k.arg(float32, "x"), k.arg(float32, "y")
    s = k.b.emit(AddOp(x, x))
    t = k.b.emit(MulOp(s, y))
    assert list(x.uses) == [(s.op, 0), (s.op, 1)] and x.users() == [s.op]
    x.replace_all_uses(y)
    assert not x.uses and s.op is not None and s.op.operands == [y, y]
    assert y.users() == [t.op, s.op]
    s.op.set_operand(1, x)
    assert list(x.uses) == [(s.op, 1)] and (s.op, 1) not in y.uses


def test_a_name_moves_to_what_replaces_the_value() -> None:
    k = Kernel()
    x = k.arg(float32, "")
    s = k.b.emit(AddOp(x, x, names=["sum"]))
    k.b.insert(PrintOp([s]))
    s.replace_all_uses(x)
    assert x.name == "sum"
    y = k.arg(float32, "y")
    x.replace_all_uses(y)
    assert y.name == "y"


def test_segments_of_optional_and_variadic_operands() -> None:
    k = Kernel()
    t = TileType((8,), float32)
    p, m = k.arg(TileType((8,), pointer_type(float32)), "p"), k.arg(TileType((8,), int1), "m")
    x = k.arg(t, "x")
    load = LoadOp(p, None, x)
    assert (load.ptr, load.mask, load.other) == (p, None, x) and load.segments == (1, 0, 1)
    load.set_operands(p, m, x)
    assert (load.ptr, load.mask, load.other) == (p, m, x) and list(x.uses) == [(load, 2)]
    load.set_operands(p)
    assert (load.mask, load.other) == (None, None) and not m.uses and not x.uses
    many = PrintOp([x, p, x])
    assert many.args == (x, p, x)
    many.set_operands([])
    assert many.args == () and not x.uses


def test_missing_attributes_are_refused_and_defaults_filled_in() -> None:
    with pytest.raises(TypeError, match="const: attribute 'value' is missing"):
        ConstOp(results=[int32])
    op = LoadOp(Value(pointer_type(float32), Block(), 0))
    assert (op.cache, op.volatile) == ("", False)
    op.cache = ".cg"
    assert op.attrs["cache"] == ".cg"


def test_inherited_fields_come_first() -> None:
    assert [f.name for f in ForOp.operand_fields] == ["lb", "ub", "step", "inits"]
    assert [f.name for f in AddOp.operand_fields] == ["lhs", "rhs"]


def test_an_opcode_is_defined_once() -> None:
    with pytest.raises(TypeError, match="opcode 'add' is defined twice"):

        class Again(Op, opcode="add"):
            x: Value = operand()
            n: int = attr()


def test_blocks_are_linked_both_ways() -> None:
    k = Kernel()
    ops = [k.b.insert(ConstOp(value=i, results=[int32])) for i in range(4)]
    assert list(k.func.body) == ops and list(reversed(k.func.body)) == ops[::-1]
    ops[3].move_before(ops[0])
    assert list(k.func.body) == [ops[3], *ops[:3]] == list(reversed(k.func.body))[::-1]
    ops[0].erase()
    ops[2].erase()
    assert list(k.func.body) == [ops[3], ops[1]] and k.func.body.last is ops[1]
    ops[3].erase()
    assert k.func.body.first is k.func.body.last is ops[1]
    Builder.before_op(ops[1]).insert(ops[3])
    Builder.after_op(ops[1]).insert(ops[0])
    Builder.at_start(k.func.body).insert(ops[2])
    assert list(k.func.body) == [ops[2], ops[3], ops[1], ops[0]]


def test_walking_while_erasing() -> None:
    k = Kernel()
    for i in range(5):
        k.b.insert(ConstOp(value=i, results=[int32]))
    for op in k.module.walk():
        if isinstance(op, ConstOp) and op.value % 2:
            op.erase()
    assert [op.value for op in k.func.body if isinstance(op, ConstOp)] == [0, 2, 4]


def test_erasing_takes_what_is_inside_along() -> None:
    k = Kernel()
    c, x = k.arg(int1, "c"), k.arg(float32, "x")
    branch = k.b.insert(IfOp(c, results=[float32]))
    for block in branch.regions:
        inner = Builder(block)
        y = inner.emit(AddOp(x, x))
        inner.insert(YieldOp([inner.emit(MulOp(y, y))]))
    use = k.b.insert(PrintOp([branch.result]))
    with pytest.raises(AssertionError, match="if is still in use"):
        branch.erase()
    use.erase()
    branch.erase()
    assert not x.uses and not c.uses and k.opcodes == []


def test_replace_by_values() -> None:
    k = Kernel()
    x, y = k.arg(float32, "x"), k.arg(float32, "y")
    s = k.b.emit(AddOp(x, x))
    p = k.b.insert(PrintOp([s]))
    assert s.op is not None
    s.op.replace_by([y])
    assert p.args == (y,) and k.opcodes == ["print"]


def loop(k: Kernel) -> ForOp:
    n, x = k.arg(int32, "n"), k.arg(float32, "x")
    body = Block([int32, float32], names=["i", "acc"])
    inner = Builder(body)
    inner.insert(YieldOp([inner.emit(AddOp(body.args[1], x, names=["next"]))]))
    op = k.b.insert(ForOp(n, n, n, [x], regions=[body]))
    k.b.insert(PrintOp([op.result]))
    k.b.insert(ReturnOp())
    return op


def test_a_clone_shares_nothing() -> None:
    k = Kernel()
    loop(k)
    copy = k.module.clone()
    verify(copy)
    assert print_module(copy) == print_module(k.module)
    ours, theirs = set(k.module.walk()), set(copy.walk())
    assert not ours & theirs
    assert not {v for op in ours for v in op.operands} & {v for op in theirs for v in op.operands}


def test_a_clone_with_a_mapping_reads_other_values() -> None:
    k = Kernel()
    op = loop(k)
    other = k.arg(float32, "other")
    mapping = {op.inits[0]: other}
    copy = op.clone(mapping)
    assert copy.inits == (other,) and mapping[op.result] is copy.result
    add = copy.body.first
    assert isinstance(add, AddOp) and add.operands == [copy.carried[0], other] and add.loc is None
    assert copy.parent is None and copy.body.parent is copy


def test_position_queries() -> None:
    k = Kernel()
    op = loop(k)
    add = op.body.first
    assert add is not None and add.is_inside(op) and add.is_inside(k.func) and not op.is_inside(op)
    assert add.parent_op() is op and op.parent_op() is k.func and k.func.parent_op() is None
    assert (
        op.induction.block is op.body
        and add.results[0].block is op.body
        and op.induction.op is None
    )


def test_effects_reach_outward() -> None:
    k = Kernel()
    op = loop(k)
    assert op.all_effects() is Effect.NONE
    p = k.arg(pointer_type(float32), "p")
    b = Builder.at_start(op.body)
    b.insert(StoreOp(p, b.emit(LoadOp(p))))
    assert op.all_effects() == Effect.READ | Effect.WRITE


def test_a_builder_gives_locations() -> None:
    k = Kernel()
    here, there = Loc("k.py", 1), Loc("k.py", 2)
    b = Builder(k.func.body, loc=here)
    with b.located(there):
        second = b.insert(ConstOp(value=1, results=[int32]))
    with b.at(k.func.body, before=second):
        first = b.insert(ConstOp(value=0, results=[int32]))
    assert (first.loc, second.loc, b.before) == (here, there, None)
    assert list(k.func.body) == [first, second]
    with pytest.raises(TesseraError) as caught, b.located(there):
        raise TesseraError("no")
    assert caught.value.loc is there and b.loc is here


def test_functions_by_name() -> None:
    k = Kernel()
    assert k.module.function("k") is k.func and k.module.functions == [k.func]
    with pytest.raises(KeyError):
        k.module.function("j")
