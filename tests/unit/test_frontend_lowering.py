# ruff: noqa: F841, B007, RET503, RUF043  kernels are written for what they lower to
"""What kernels become: control flow, calls, compile-time values and source locations in the IR."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera.language as tl
from tessera import interp
from tessera.errors import CompilationError, InternalError, LoopCarriedType
from tessera.frontend import lower_kernel
from tessera.ir import Module, Op, parse_module, print_module
from tessera.language.aggregate import aggregate, constexpr_function
from tessera.language.builtin import must_use_result
from tessera.language.callable import JITCallable as jit
from tessera.ops import ConstOp, ForOp, IfOp, StoreOp, WhileOp
from tests.errors.kernel_source import OPTIONS, lower


def ops(module: Module, kind: type) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, kind)]


def body(kernel: Any, **constants: Any) -> list[str]:
    """The lines of the kernel's body; the module prints and parses back to the same text."""
    text = print_module(lower(kernel, **constants))
    assert print_module(parse_module(text)) == text
    return [line.strip() for line in text.splitlines()[2:-2]]


def stored(module: Module) -> list[Any]:
    """What the kernel stores: Python numbers for constants, else the op that computes it."""
    values = [op.value.op for op in ops(module, StoreOp)]
    return [v.value if isinstance(v, ConstOp) else v for v in values]


# --- values ---------------------------------------------------------------------------------------------
def test_a_plain_kernel():
    @jit
    def k(p, n, B: tl.constexpr):
        offs = tl.program_id(0) * B + tl.arange(0, B)
        mask = offs < n
        x = tl.load(p + offs, mask=mask)
        tl.store(p + offs, x + 1, mask=mask)

    assert body(k, B=8) == [
        "%0: i32 = program_id {axis=0}",
        "%1: i32 = const {value=8}",
        "%2: i32 = mul %0, %1",
        "%3: tile<8xi32> = arange {start=0, end=8}",
        "%4: tile<8xi32> = splat %2",
        "%offs: tile<8xi32> = add %4, %3",
        "%5: tile<8xi32> = splat %n",
        "%mask: tile<8xi1> = cmp %offs, %5 {predicate='lt'}",
        "%6: tile<8x*fp32> = splat %p",
        "%7: tile<8x*fp32> = addptr %6, %offs",
        "%x: tile<8xfp32> = load %7, %mask, _",
        "%8: tile<8x*fp32> = splat %p",
        "%9: tile<8x*fp32> = addptr %8, %offs",
        "%10: tile<8xfp32> = const {value=float('0x1.0000000000000p+0')}",
        "%11: tile<8xfp32> = add %x, %10",
        "store %9, %11, %mask",
        "return []",
    ]


def test_assigned_numbers_become_scalars_and_annotated_ones_do_not():
    @jit
    def k(p, n):
        a = 3
        b: tl.constexpr = 4
        c: tl.constexpr
        c = 5
        i = tl.arange(0, b) + a
        tl.store(p + i, c)
        x, (y, z) = 1, (2.5, True)
        v = 2**40

    lines = body(k)
    assert "%a: i32 = const {value=3}" in lines
    assert not any(line.startswith(("%b", "%c")) for line in lines)
    for name, t in (("x", "i32"), ("y", "fp32"), ("z", "i1"), ("v", "i64")):
        assert any(line.startswith(f"%{name}: {t} = const") for line in lines)


def test_compile_time_expressions_are_pythons():
    @constexpr_function
    def twice(n):
        return 2 * n

    @jit
    def k(p, B: tl.constexpr, T: tl.constexpr):
        tl.store(p, -B // 2)
        tl.store(p, twice(B) ** 2)
        tl.store(p, B if T is None else 1)
        tl.store(p, [x * 2 for x in (1, 2, 3) if x > 1][1])
        tl.store(
            p, len(f"B={B:03d} {tl.float16}") + max(B, 2) + int(2.9)
        )  # formats are passed over
        tl.store(p, 1 < B < 8 and not (B == 3 or False))
        tl.store(p, isinstance(B, tl.constexpr) and hasattr(p, "dtype"))
        tl.store(p, B.real + min([4, 3]))
        tl.store(p, (1, 2, 3)[-1] + (5, 6)[1:][0])

    values = stored(lower(k, B=7, T=None))
    assert values == [-4, 196, 7, 6, 8 + 7 + 2, 1, 1, 10, 9]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_tuples_named_tuples_and_unpacking():
    @jit
    def swap(t):
        a, b = t
        return Pair(b, a)

    @jit
    def k(p, n):
        t = swap((n, 4))
        tl.store(p, t.second + len(t))
        for i in range(n):
            t = Pair(t.first + i, t[1])
        tl.store(p, t.first)

    module = lower(k)
    (loop,) = ops(module, ForOp)
    assert [v.name for v in loop.results] == ["t_0", "t_1"]


def test_tuple_arguments_are_flattened():
    @jit
    def k(p, t):
        tl.store(t[0], t[1] + t[2][0])

    module = lower_kernel(
        k,
        {"p": "constexpr", "t": ("*fp32", "constexpr", ("i64",))},
        {"p": None, (1, 1): 3},
        {(1, 0): [["tt.divisibility", 16]]},
        OPTIONS,
    )
    func: Any
    (func,) = module.functions
    assert [(a.name, a.type.short) for a in func.body.args] == [("t_0", "*fp32"), ("t_2_0", "i64")]
    assert func.arg_attrs == ((("divisibility", 16),), ())


def test_aggregates_are_carried_by_their_fields():
    @aggregate
    class State:
        total: tl.tensor
        step: tl.constexpr

        @jit
        def add(self, x):
            return State(self.total + x * self.step, self.step)

    @aggregate
    class Start:
        total: tl.tensor

        @jit
        def __init__(self, n):
            self.total = n * 2

    @jit
    def k(p, n):
        s = State(Start(n).total, 3)
        for i in range(n):
            s = s.add(i)
        tl.store(p, s.total)

    (loop,) = ops(lower(k), ForOp)
    assert [v.name for v in loop.results] == ["s"]


# --- branches ---------------------------------------------------------------------------------------------
def test_compile_time_if_reads_one_side():
    @jit
    def k(p, B: tl.constexpr):
        if B > 4:
            x = B
        elif B is None:
            x = unknown  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        else:
            x = undefined  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        tl.store(p + x, 1)

    assert stored(lower(k, B=8)) == [1]
    with pytest.raises(CompilationError, match="undefined is not defined"):
        lower(k, B=1)


def test_run_time_if_joins_what_changes():
    @jit
    def k(p, n):
        x = n
        same = n + 1
        if n > 3:
            x = x + 1
            y = 2
        else:
            y = 3
        z = x if same else y
        tl.store(p, x + y + z)

    first, second = ops(lower(k), IfOp)
    assert [v.name for v in first.results] == ["x", "y"]
    assert [v.name for v in second.results] == ["z"]


def test_early_return_of_a_kernel_guards_the_rest():
    @jit
    def k(p, n):
        if n > 3:
            return
        tl.store(p, 1)
        if n > 2:
            tl.store(p, 2)
            return
        elif n > 1:
            tl.store(p, 3)
        tl.store(p, 4)

    outer, inner, innermost = ops(lower(k), IfOp)
    assert [op.opcode for op in outer.then] == ["yield"]
    assert inner.is_inside(outer)
    assert innermost.is_inside(inner)
    assert stored_in(inner.then) == [2]
    assert stored_in(innermost.then) == [3]
    assert stored_in(inner.orelse) == [3, 4]


def ops_in(block: Any, kind: type) -> list[Any]:
    return [op for op in block.walk() if isinstance(op, kind)]


def stored_in(block: Any) -> list[Any]:
    return [op.value.op.attrs["value"] for op in ops_in(block, StoreOp)]


def test_early_return_gives_the_value_of_a_call():
    @jit
    def pick(x):
        if x > 3:
            return x, 1
        y = x + 1
        if y > 2:
            return y, 2
        return y, 2

    @jit
    def k(p, n):
        a, b = pick(n)
        tl.store(p, a + b)

    outer, inner = ops(lower(k), IfOp)
    assert [v.type.short for v in outer.results] == ["i32", "i32"]
    assert [v.type.short for v in inner.results] == ["i32"]  # both give 2: it stays a constant


def test_a_path_without_return_gives_zeros():
    @jit
    def f(x):
        if x > 3:
            return x

    @jit
    def k(p, n):
        tl.store(p, f(n))

    (op,) = ops(lower(k), IfOp)
    assert op.orelse.terminator.operands[0].op.value == 0


# --- loops ------------------------------------------------------------------------------------------------
def test_for_carries_what_the_body_assigns_and_existed_before():
    @jit
    def k(p, n):
        acc = 0.0
        unchanged = n
        for i in tl.range(0, n, 4, num_stages=3, loop_unroll_factor=2, flatten=True):
            fresh = acc * 2
            if fresh > 3:
                acc = fresh
        tl.store(p + unchanged, acc)

    module = lower(k)
    (loop,) = ops(module, ForOp)
    assert [v.name for v in loop.results] == ["acc"]
    assert loop.induction.name == "i"
    assert (loop.num_stages, loop.unroll, loop.flatten, loop.disable_licm) == (3, 2, True, False)


def test_a_body_is_read_once(capsys: pytest.CaptureFixture[str]):
    @jit
    def k(p, n):
        acc = 0
        for i in range(n):
            for j in range(i):
                acc += j
                tl.static_print("seen")

    lower(k)
    assert capsys.readouterr().out == "seen\n"


def test_bounds_meet_in_one_integer_type():
    @jit
    def k(p, n):
        for i in range(n, 2**40):
            tl.store(p, i)
        for j in range(10, 0, -2):
            tl.store(p, j)

    up, down = ops(lower(k), ForOp)
    assert up.induction.type == tl.int64
    assert (down.step.op.value, down.induction.type) == (-2, tl.int32)


def test_numbers_in_parameters_become_variables_of_a_loop():
    @jit
    def total(n, acc):
        for i in range(n):
            acc += i
        return acc

    @jit
    def k(p, n):
        tl.store(p, total(n, 0))

    (loop,) = ops(lower(k), ForOp)
    assert loop.inits[0].op.value == 0


def test_static_range_is_unrolled_with_constants():
    @jit
    def k(p, n):
        acc: tl.constexpr = 1
        for i in tl.static_range(3, 0, -1):
            tl.store(p + i, i * 2)
        for j in tl.static_range(2):
            tl.store(p, (10, n)[j])
        tl.store(p, i)

    values = stored(lower(k))
    assert values[:4] == [6.0, 4.0, 2.0, 10.0]
    assert values[5] == 1.0


def test_while_carries_and_tests():
    @jit
    def k(p, n):
        i = 0
        while tl.condition((i := i + 1) < n, disable_licm=True):
            n -= 1
        tl.store(p, i)

    (loop,) = ops(lower(k), WhileOp)
    assert [v.name for v in loop.results] == ["n", "i"]
    assert loop.disable_licm


def test_lock_loop_carries_nothing():
    @jit
    def k(lock, p):
        while tl.atomic_cas(p, 0.0, 1.0) == 1.0:
            pass
        tl.atomic_xchg(p, 0.0)

    (loop,) = ops(lower(k), WhileOp)
    assert not loop.results


# --- calls --------------------------------------------------------------------------------------------------
def test_constants_stay_constants_in_callees():
    @jit
    def fill(n, value):
        return tl.full((n,), value, tl.float32)

    @jit
    def factorial(n):
        if n <= 1:
            return 1
        return n * factorial(n - 1)

    @jit
    def sum_all(*xs):
        total = 0
        for i in tl.static_range(len(xs)):
            total += xs[i]
        return total

    @jit
    def k(p, n, f: tl.constexpr):
        tl.store(p + tl.arange(0, 4), f(4, value=factorial(4)))
        tl.store(p, sum_all(*(1, n), 3))

    assert stored(lower(k, f=fill))[0] == 24.0


def test_locations_follow_inlined_calls():
    @jit
    def inner(x):
        return x * x

    @jit
    def k(p, n):
        y = inner(n)
        tl.store(p, y)

    module = lower(k)
    (mul,) = [op for op in module.walk() if op.opcode == "mul"]
    chain = mul.loc.chain()
    assert [place.function for place in chain] == ["k", "inner"]
    assert [place.line - place.first_line for place in chain] == [1, 1]
    assert chain[0].render().endswith("| " + " " * 12 + "^" * 8)
    assert all(isinstance(op, Op) and op.loc is not None for op in module.walk())


def test_nested_early_returns_read_what_follows_once():
    """Where both sides of an `if` may return and may go on, the rest is not repeated at the end of each."""

    @jit
    def helper(n):
        x = n
        if n > 0:
            if n > 1:
                return x * 2
            x += 1
        else:
            if n < -5:
                return x
        if n > 2:
            if n > 3:
                x -= 1
            else:
                return 7
        x += 100
        return x

    @jit
    def k(p, n):
        x = 0
        if n > 1:
            if n > 11:
                return
            x += 1
        if n > 2:
            if n > 12:
                return
            x += 2
        if n > 3:
            if n > 13:
                return
            x += 3
        tl.store(p, x + helper(n))

    module = lower(k)
    assert len(ops(module, StoreOp)) == 1
    assert len([c for c in ops(module, ConstOp) if c.value == 100]) == 1
    for n in range(-8, 16):
        out = np.full(1, -1, np.float32)
        interp.run(module, (1, 1, 1), [out, n])
        want = -1 if n > 11 else helper.fn(n) + (n > 1) + 2 * (n > 2) + 3 * (n > 3)
        assert out[0] == want, n


def test_noinline_takes_scalars_only():
    def add(x):
        return x + 1

    callee = jit(add, noinline=True)

    @jit
    def k(p, n):
        callee(tl.arange(0, 4))

    with pytest.raises(CompilationError, match="marked noinline, but was called with non-scalar"):
        lower(k)


def test_results_that_must_be_used():
    callee = must_use_result("it changes nothing")(jit(identity))

    @jit
    def k(p, n):
        callee(n)

    with pytest.raises(
        CompilationError, match="The result of callee is not being used. it changes"
    ):
        lower(k)


def identity(x):
    return x


# --- failures -----------------------------------------------------------------------------------------------
def test_bugs_of_the_compiler_say_so_and_where(monkeypatch: pytest.MonkeyPatch):
    @jit
    def k(p, n):
        tl.store(p, 1)

    def broken(*_: Any) -> None:
        raise AssertionError("oops")

    monkeypatch.setattr(tl.store, "impl", broken)
    with pytest.raises(InternalError, match="AssertionError: oops") as info:
        lower(k)
    assert info.value.loc is not None
    assert "tl.store(p, 1)" in str(info.value)


def test_errors_of_a_failed_kernel_leave_nothing_behind():
    @jit
    def k(p, n, B: tl.constexpr):
        x = 0
        for i in range(n):
            x = x + B

    with pytest.raises(LoopCarriedType):
        lower(k, B=1.5)
    assert ops(lower(k, B=1), ForOp)


def test_descriptor_arguments_are_base_extents_and_strides():
    @jit
    def k(d):
        d.store([0, d.shape[1]], d.load([0, 0]))

    attrs = {(0,): [["padding", "nan"]]}
    module = lower_kernel(k, {"d": "tensordesc<fp16[16, 32]>"}, {}, attrs, OPTIONS)
    func: Any
    (func,) = module.functions
    assert [a.type.short for a in func.body.args] == ["*fp16", "i32", "i32", "i64", "i64"]
    assert func.arg_attrs[0] == (("divisibility", 16),)
    assert func.body.first is not None
    assert func.body.first.attrs["padding"] == "nan"


def test_a_type_by_a_name_made_in_the_kernel():
    @jit
    def k(x, BITS: tl.constexpr):
        wide: tl.constexpr = tl.dtype(f"uint{BITS * 2}")
        tl.static_assert(wide == tl.uint64)
        tl.static_assert(tl.full([4], 1, wide).dtype == tl.uint64)

    lower(k, BITS=32)
