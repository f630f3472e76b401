"""The verifier: one broken kernel a rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera.dtypes import float32, int32
from tessera.errors import IRError, Loc
from tessera.ir import Block, Builder, Module, Op, Value, parse_module, verify
from tessera.ir.fields import clock
from tessera.ops import AddOp, FuncOp, PrintOp, ReturnOp, StoreOp
from tests.unit.op_samples import ALLOC, DESCRIPTOR, SHARED, SUM, kernel

# (what stands in the kernel, part of the message)
BROKEN = [
    # results
    ("%x: i64 = add %i, %j", "add: result types ['i64'] should be ['i32']"),
    ("add %i, %j", "add: result types [] should be ['i32']"),
    ("%x: tile<4x8xfp32>, %y: i32 = trans %m {order=[1, 0]}", "result types ['tile<4x8xfp32>', 'i32'] should be"),
    # elements and shapes
    ("%x: i32 = add %i, %u", "<i: i32> and <u: u32> differ in type"),
    ("%x: tile<8xi32> = add %ti, %i", "operands and results differ in shape"),
    ("%x: *fp32 = add %p, %p", "operands are not numbers: ['*fp32', '*fp32']"),
    ("%x: fp32 = and %f, %g", "operands are not integers"),
    ("%x: i32 = pow %i, %j", "operands are not floats"),
    ("%x: i32 = exp %i", "operands are not floats"),
    ("%x: i32 = fma %i, %j, %i", "operands are not floats"),
    ("%x: *fp32 = neg %p", "operands are not numbers"),
    ("%x: i1 = isnan %i", "operands are not floats"),
    ("%x: i32 = popc %f", "operands are not integers"),
    ("%x: i32 = clz %f", "operands are not integers"),
    ("%x: i1 = cmp %i, %f {predicate='lt'}", "operands differ in type"),
    ("%x: i1 = cmp %i, %j {predicate='ult'}", "unknown predicate 'ult'"),
    ("%x: i32 = select %i, %i, %j", "the condition is not int1"),
    ("%x: i32 = select %c, %i, %u", "the two values differ in type"),
    ("%x: tile<8xfp32> = select %c, %tf, %tg", "operands and results differ in shape"),
    ("%x: tile<8xi32, ll<[8] register=[[1],[2],[4]]>> = cast %ti", "operands and results differ in layout"),
    ("%x: u8 = const {value=256}", "256 does not fit uint8"),
    ("%x: i8 = const {value=-129}", "-129 does not fit int8"),
    ("%x: i32 = const {value=float('1.5')}", "a constant of int32 holds an int"),
    ("%x: fp16 = cast %f {rounding='up'}", "unknown rounding 'up'"),
    ("%x: fp32 = cast %p", "no cast from pointer<fp32> to fp32"),
    ("%x: i64 = bitcast %f", "fp32 and int64 differ in width"),
    ("%x: i32 = addptr %i, %j", "the first operand is not a pointer"),
    ("%x: *fp32 = addptr %p, %f", "the offset is not an integer"),
    (DESCRIPTOR + "%x: i64 = bitcast %d", "bitcast: malformed (AttributeError"),
    # tiles
    ("%x: i32 = program_id {axis=3}", "axis is not 0, 1 or 2"),
    ("%x: i32 = num_programs {axis=-1}", "axis is not 0, 1 or 2"),
    ("%x: tile<0xi32> = arange {start=3, end=3}", "the range is empty"),
    ("%x: tile<4x8xi32> = splat %ti", "the operand is not a scalar"),
    ("%x: tile<8xi32> = splat %f", "the element type is not the scalar's"),
    ("%x: tile<4x16xfp32> = broadcast %m", "(4, 8) does not broadcast to (4, 16)"),
    ("%x: tile<4x8xfp32> = broadcast %tf", "(8,) does not broadcast to (4, 8)"),
    ("%x: tile<8xi32> = broadcast %tf", "element types differ"),
    ("%x: tile<8x1xi32> = expand_dims %ti {axis=2}", "axis out of range"),
    ("%x: tile<16xi32> = reshape %ti", "the number of elements changes"),
    ("%x: tile<8xi32> = reshape %tf", "element types differ"),
    ("%x: tile<4x4xfp32> = trans %m {order=[0, 0]}", "order is no permutation"),
    ("reduce [] {axis=0} () {\nyield []\n}", "no input"),
    ("%x: tile<8x2xi32> = join %ti, %tf", "operands differ in type"),
    ("%a: i32, %b: i32 = split %ti", "the last dimension has not extent 2"),
    ("%x: tile<8xfp32> = gather %tf, %tg {axis=0}", "the index is not an integer"),
    ("%x: tile<8xfp32> = gather %tf, %ti {axis=1}", "axis out of range"),
    ("%x: tile<8xfp32> = gather %m, %ti {axis=1}", "differ beside axis 1"),
    ("%x: tile<4xi32> = histogram %tf, _ {bins=4}", "the operand is no 1-D integer tile"),
    ("%x: tile<4xi32> = histogram %ti, %ti {bins=4}", "bad type of the mask"),
    ("%x: tile<4x4xfp32> = dot %m, %m, %sq", "do not fit"),
    ("%x: tile<4xfp32> = reduce [%m] {axis=2} " + SUM, "axis out of range"),
    ("%x: i32 = reduce [%ti] {axis=0} " + SUM, "combine has the wrong arguments"),
    ("%x: fp32 = reduce [%tf] {axis=0} (%a: fp32, %b: fp32) {\nyield []\n}", "combine yields wrong types"),
    # memory
    ("%x: fp32 = load %f, _, _", "the first operand is not a pointer"),
    ("%x: tile<8xfp32> = load %tp, %c, _", "the mask must be int1 in the shape of the pointer"),
    ("%x: tile<8xfp32> = load %tp, %tc, %ti", "`other` has not the type of the result"),
    ("%x: fp32 = load %p, _, _ {cache='.wb'}", "cache cannot be '.wb'"),
    ("%x: fp32 = load %p, _, _ {eviction='soon'}", "eviction cannot be 'soon'"),
    ("store %p, %i, _", "the value has not the pointer's element type"),
    ("store %p, %f, _ {cache='.ca'}", "cache cannot be '.ca'"),
    ("store %p, %f, %tc", "the mask must be int1"),
    ("%x: i32 = atomic_rmw %q, %i, _ {kind='nand'}", "kind cannot be 'nand'"),
    ("%x: i32 = atomic_rmw %q, %i, _ {kind='add', sem='seq'}", "sem cannot be 'seq'"),
    ("%x: i32 = atomic_cas %q, %i, %j {scope='all'}", "scope cannot be 'all'"),
    ("%x: fp32 = atomic_cas %q, %i, %f", "operand types differ"),
    ("%d: desc<8xfp32> = make_descriptor %p, [%i, %j], [%l, %l] {block_shape=[8]}", "differ in rank"),
    ("%d: desc<8xfp32> = make_descriptor %p, [%f], [%l] {block_shape=[8]}", "not integer scalars"),
    ("%d: desc<8xi32> = make_descriptor %i, [%i], [%l] {block_shape=[8]}", "the base is not a pointer"),
    (DESCRIPTOR + "%x: tile<4x8xfp32> = descriptor_load %d, [%i]", "one offset a dimension"),
    (DESCRIPTOR + "%x: tile<4x8xfp32> = descriptor_load %d, [%f, %f]", "offsets are not integer"),
    (DESCRIPTOR + "descriptor_store %d, [%i, %j], %n", "the value has not the descriptor's block type"),
    (DESCRIPTOR + "descriptor_store %d, [%i, %j], %m {kind='sub'}", "kind cannot be 'sub'"),
    ("assert %i", "the condition is not int1"),
    ("assume %f", "the condition is not int1"),
    # control flow
    ("if %i () {\nyield []\n} () {\nyield []\n}", "the condition is not int1"),
    ("%x: i32 = if %c () {\nyield [%i]\n} () {\nyield [%f]\n}", "a branch yields other types"),
    ("if %c () {\n} () {\nyield []\n}", "if: a region must end in a terminator"),
    ("if %c () {\nyield []\nbarrier\n} () {\nyield []\n}", "if: a region must end in a terminator"),
    ("if %c () {\nyield []\nyield []\n} () {\nyield []\n}", "yield: a terminator stands inside a block"),
    ("if %c () {\nreturn []\n} () {\nyield []\n}", "a block does not end in a yield"),
    ("if %c () {\n%z: i32 = add %i, %j\nyield []\n} () {\nyield []\n}\nprint [%z]", "print: operand 0 is used before"),
    ("for %i, %j, %u, [] (%k: i32) {\nyield []\n}", "bounds and step differ in type"),
    ("for %f, %f, %f, [] (%k: fp32) {\nyield []\n}", "bounds and step are not integer scalars"),
    ("for %i, %j, %i, [] () {\nyield []\n}", "body arguments have the wrong types"),
    ("%x: i32 = for %i, %j, %i, [%i] (%k: i32, %a: i32) {\nyield []\n}", "the body yields other types"),
    ("for %i, %j, %i, [%i] (%k: i32, %a: i32) {\nyield [%a]\n}", "result types [] should be ['i32']"),
    ("while [] () {\nyield []\n} () {\nyield []\n}", "`before` must end in a condition"),
    ("while [] () {\ncondition %i, []\n} () {\nyield []\n}", "the condition is not int1"),
    ("while [] () {\ncondition %c, [%i]\n} () {\nyield []\n}", "the condition passes other types"),
    ("%x: i32 = while [%i] (%a: i32) {\ncondition %c, [%a]\n} () {\nyield [%i]\n}", "`after` has the wrong arguments"),
    ("%x: i32 = while [%i] (%a: i32) {\ncondition %c, [%a]\n} (%b: i32) {\nyield []\n}", "`after` yields other types"),
    ("%x: fp32 = call [%f, %g] {callee='minus'}", "there is no function 'minus'"),
    ("%x: fp32 = call [%f] {callee='plus'}", "arguments have the wrong types"),
    ("call [%f, %g] {callee='plus'}", "results have the wrong types"),
    ("func {name='inner'} () {\nreturn []\n}", "a function inside a function"),
    # the GPU level
    ("%x: tile<8xfp32> = convert_layout %ti", "shape or element type changes"),
    ("%x: tile<8xfp32> = local_alloc _", "the result is not shared memory"),
    (ALLOC + f"%x: {SHARED.replace('4x8', '8', 1)} = local_index %s, %l", "the index is not int32"),
    (ALLOC + f"%x: {SHARED} = local_trans %s {{order=[1, 0]}}", "the result is not the permuted shape"),
    (ALLOC + f"%x: {SHARED} = local_trans %s {{order=[1, 1]}}", "order is no permutation"),
    (ALLOC + "%x: tile<8x4xfp32> = local_load %s, _", "tile and memory differ in type"),
    (ALLOC + "local_store %n, %s", "tile and memory differ in type"),
    ("local_store %m, %m", "the memory operand is not shared memory"),
    (ALLOC + "%x: token = async_copy %mp, %s, %tc, _, _", "the mask must be int1 in the pointer's shape"),
    ("%x: token = async_copy %mp, %m, _, _, _", "the second operand is not shared memory"),
    ("%x: tile<8xfp32> = local_index %m, %i", "the first operand is not shared memory"),
    (ALLOC + "%x: token = async_copy %tp, %s, _, _, _", "source and target differ"),
    (ALLOC + "%x: token = async_copy %m, %s, _, _, _", "the first operand is not a pointer"),
    ("%x: tile<4x4xfp32> = wgmma %m, %n, %sq {instruction='x', warpgroups=[1, 1]}", "operand is not in shared memory"),
    ("%x: fp32 = mma %f, %f, %f {instruction='x'}", "operands are not tiles"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), BROKEN)
def test_broken_rules_are_found(body: str, message: str) -> None:
    module = parse_module(kernel(body + "\n"))
    with pytest.raises(IRError) as caught:
        verify(module)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("header", "end", "message"),
    [
        ("func {name='f', returns=[!i32]} (%i: i32)", "return []", "returns have the wrong types"),
        ("func {name='f'} (%i: i32)", "return [%i]", "returns have the wrong types"),
        ("func {name='f', arg_attrs=[[], []]} (%i: i32)", "return []", "arg_attrs are not one"),
        ("func {name='f'} (%i: i32)", "yield []", "the body must end in a return"),
    ],
)
def test_broken_functions_are_found(header: str, end: str, message: str) -> None:
    module = parse_module(f"module {{}} {{\n{header} {{\n{end}\n}}\n}}\n")
    with pytest.raises(IRError, match=message.replace("[", r"\[")):
        verify(module)


def small() -> tuple[Module, AddOp, Value]:
    module = Module()
    func = FuncOp(name="k")
    module.body.append(func)
    x = func.body.add_arg(int32, "x")
    b = Builder(func.body, loc=Loc("kernel.py", 12))
    add = b.insert(AddOp(x, x))
    b.insert(PrintOp([add.result]))
    b.insert(ReturnOp())
    verify(module)
    return module, add, x


def test_broken_use_lists_are_found() -> None:
    module, add, x = small()
    del x.uses[add, 1]
    with pytest.raises(IRError, match="use list of operand 1 is broken"):
        verify(module)
    module, add, x = small()
    x.uses[add, 7] = None
    verify(module)  # arguments of blocks are checked where they are used
    add.result.uses[add, 0] = None
    with pytest.raises(IRError, match="use list of a result is broken"):
        verify(module)


def test_broken_links_are_found() -> None:
    module, add, _ = small()
    add.parent = Block()
    with pytest.raises(IRError, match="add: parent link is broken"):
        verify(module)
    module, add, _ = small()
    module.functions[0].regions[0].parent = add
    with pytest.raises(IRError, match="region has another parent"):
        verify(module)


def test_missing_operands_are_found() -> None:
    module, add, x = small()
    Builder.before_op(add).insert(StoreOp(x, None))
    with pytest.raises(IRError, match="operand 'value' is missing"):
        verify(module)
    module, add, x = small()
    add.operands.pop()
    with pytest.raises(IRError, match="wrong number of operands"):
        verify(module)


def test_the_error_says_where_in_the_kernel() -> None:
    module, add, _ = small()
    add.result.type = float32
    with pytest.raises(IRError) as caught:
        verify(module)
    assert caught.value.loc == Loc("kernel.py", 12)
    assert "--> kernel.py:12:1" in str(caught.value)


# --- only what changed --------------------------------------------------------------------------------------------
LOOP = """
module {} {
func {name='k'} (%p: *fp32, %n: i32, %f: fp32) {
  %one: i32 = const {value=1}
  %a: i32 = add %n, %one
  %b: i32 = mul %a, %one
  %r: i32 = for %one, %n, %one, [%b] (%i: i32, %c: i32) {
    %d: i32 = add %c, %a
    %e: i32 = add %d, %i
    yield [%e]
  }
  %s: i32 = add %r, %b
  return []
}
}
"""


def named(module: Module) -> dict[str, Op]:
    return {r.name: op for op in module.walk() for r in op.results}


def set_wrong_operand(ops: dict[str, Op]) -> None:
    func = ops["a"].parent_op()
    assert func is not None
    ops["d"].set_operand(0, func.regions[0].args[2])


def set_wrong_operands(ops: dict[str, Op]) -> None:
    func = ops["a"].parent_op()
    assert func is not None
    ops["b"].set_operands(ops["a"].result, func.regions[0].args[2])


def move_behind_a_user(ops: dict[str, Op]) -> None:
    ops["a"].move_before(ops["s"])


def move_out_of_a_loop(ops: dict[str, Op]) -> None:
    ops["e"].move_before(ops["r"])


def move_a_loop_up(ops: dict[str, Op]) -> None:
    ops["r"].move_before(ops["a"])


def use_behind_the_loop(ops: dict[str, Op]) -> None:
    ops["s"].set_operand(0, ops["e"].result)


def drop_what_is_used(ops: dict[str, Op]) -> None:
    ops["d"].detach()


def drop_the_terminator(ops: dict[str, Op]) -> None:
    ops["r"].regions[0].terminator.erase()


def yield_a_wrong_type(ops: dict[str, Op]) -> None:
    func = ops["a"].parent_op()
    assert func is not None
    ops["r"].regions[0].terminator.set_operand(0, func.regions[0].args[2])


def add_an_argument(ops: dict[str, Op]) -> None:
    ops["r"].regions[0].add_arg(int32)


def add_a_wrong_op(ops: dict[str, Op]) -> None:
    Builder.before_op(ops["s"]).insert(AddOp(ops["a"].result, ops["b"].result, results=[float32]))


def set_a_wrong_attribute(ops: dict[str, Op]) -> None:
    ops["one"].value = 1 << 40  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "change",
    [
        set_wrong_operand, set_wrong_operands, move_behind_a_user, move_out_of_a_loop, move_a_loop_up,
        use_behind_the_loop, drop_what_is_used, drop_the_terminator, yield_a_wrong_type,
        add_an_argument, add_a_wrong_op, set_a_wrong_attribute,
    ],
)  # fmt: skip
def test_what_changed_is_looked_at(change: Callable[[dict[str, Op]], None]) -> None:
    module = parse_module(LOOP)
    since = clock.tick()
    verify(module, since)
    change(named(module))
    with pytest.raises(IRError):
        verify(module)
    with pytest.raises(IRError):
        verify(module, since)


def test_what_did_not_change_is_not_looked_at() -> None:
    module = parse_module(LOOP)
    set_wrong_operand(named(module))
    since = clock.tick()
    verify(module, since)
    named(module)["d"].touch()
    with pytest.raises(IRError):
        verify(module, since)
