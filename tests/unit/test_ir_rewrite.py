"""The rewrite driver: fixpoints, what is looked at again, unused ops, hits."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir import (
    Op,
    Rewriter,
    RuleSet,
    Value,
    parse_module,
    print_module,
    rule,
    verify,
)
from tessera.ir.rewrite import is_dead
from tessera.ops import AddOp, ConstOp, IfOp, MulOp, PrintOp, SubOp, XorOp
from tests.unit.op_samples import SAMPLES, kernel


def rewritten(body: str, rules: RuleSet) -> tuple[str, Rewriter, bool]:
    """Ops of the kernel after rewriting, one a line."""
    module = parse_module(kernel(body, "%i: i32, %j: i32, %c: i1"))
    driver = Rewriter(rules)
    changed = driver.run(module)
    verify(module)
    lines = print_module(module).split("func {name='k'}")[1].splitlines()[1:-2]
    return "\n".join(line.strip() for line in lines[:-1]), driver, changed


def test_rules_run_to_a_fixpoint() -> None:
    rules = RuleSet()

    @rule(rules, AddOp)
    def twice(op: AddOp, rw: Rewriter) -> Value | None:
        if op.lhs is not op.rhs:
            return None
        two = rw.emit(ConstOp(value=2, results=[op.lhs.type]))
        return rw.emit(MulOp(op.lhs, two))

    @rule(rules, SubOp)
    def as_sum(op: SubOp, rw: Rewriter) -> Value | None:
        return rw.emit(AddOp(op.lhs, op.rhs))

    text, driver, changed = rewritten("%x: i32 = sub %i, %i\nprint [%x]\n", rules)
    assert text == "%0: i32 = const {value=2}\n%x: i32 = mul %i, %0\nprint [%x]"
    assert driver.hits == {"as_sum": 1, "twice": 1} and changed


def test_users_are_looked_at_again() -> None:
    """The second op matches only after the first was replaced."""
    rules = RuleSet()

    @rule(rules, XorOp)
    def cancel(op: XorOp, rw: Rewriter) -> Value | None:
        inner = op.lhs.op
        return inner.lhs if isinstance(inner, XorOp) and inner.rhs is op.rhs else None

    body = "%x: i32 = xor %i, %j\n%y: i32 = xor %x, %j\n%z: i32 = xor %y, %j\n%w: i32 = xor %z, %j\nprint [%w]\n"
    text, driver, _ = rewritten(body, rules)
    assert text == "print [%i]" and driver.hits == {"cancel": 2}


def test_several_results_are_replaced_together() -> None:
    rules = RuleSet()

    @rule(rules, IfOp)
    def take_then(op: IfOp, rw: Rewriter) -> Sequence[Value] | None:
        return list(op.then.terminator.operands)

    body = (
        "%x: i32, %y: i32 = if %c () {\nyield [%i, %j]\n} () {\nyield [%j, %i]\n}\nprint [%x, %y]\n"
    )
    assert rewritten(body, rules)[0] == "print [%i, %j]"


def test_operands_changed_in_place_leave_nothing_unused() -> None:
    rules = RuleSet()

    @rule(rules, PrintOp)
    def print_i(op: PrintOp, rw: Rewriter) -> Op | None:
        if not isinstance(op.args[0].op, AddOp):
            return None
        rw.set_operands(op, [op.args[0].op.lhs])
        return op

    text, _, _ = rewritten("%x: i32 = add %i, %j\n%y: i32 = add %x, %j\nprint [%y]\n", rules)
    assert text == "print [%i]"


def test_replaced_uses_wake_their_users() -> None:
    rules = RuleSet()

    @rule(rules, IfOp)
    def condition_is_known(op: IfOp, rw: Rewriter) -> Op | None:
        k = op.results[0]
        if not k.uses:
            return None
        rw.replace_uses(k, op.then.terminator.operands[0])
        return op

    @rule(rules, AddOp)
    def itself(op: AddOp, rw: Rewriter) -> Value | None:
        return op.lhs if op.lhs is op.rhs else None

    body = "%x: i32 = if %c () {\nyield [%i]\n} () {\nyield [%j]\n}\n%y: i32 = add %x, %i\nprint [%y]\n"
    assert rewritten(body, rules)[0] == "print [%i]"


def test_nothing_to_do() -> None:
    text, driver, changed = rewritten("%x: i32 = add %i, %j\nprint [%x]\n", RuleSet())
    assert text == "%x: i32 = add %i, %j\nprint [%x]" and not changed and driver.hits == {}


def test_unused_ops_go_with_what_fed_them() -> None:
    body = (
        "%x: i32 = add %i, %j\n%y: i32 = mul %x, %x\n"
        "%z: i32 = for %i, %j, %y, [%x] (%k: i32, %a: i32) {\n%b: i32 = add %a, %y\nyield [%b]\n}\n"
        "if %c () {\nyield []\n} () {\nyield []\n}\n"
    )
    assert rewritten(body, RuleSet())[0] == ""


def test_new_ops_take_the_location() -> None:
    rules = RuleSet()

    @rule(rules, SubOp)
    def as_sum(op: SubOp, rw: Rewriter) -> Value | None:
        return rw.emit(AddOp(op.lhs, op.rhs))

    module = parse_module(kernel("%x: i32 = sub %i, %j\nprint [%x]\n"))
    (old,) = (op for op in module.walk() if isinstance(op, SubOp))
    old.loc = object()  # type: ignore[assignment]
    place = old.loc
    Rewriter(rules).run(module)
    assert [op.loc for op in module.functions[1].regions[0] if isinstance(op, AddOp)] == [place]


def test_rule_sets_add_up() -> None:
    a, b = RuleSet(), RuleSet()

    @rule(a, AddOp)
    def first(op: AddOp, rw: Rewriter) -> Value | None:
        return None

    @rule(b, AddOp, SubOp)
    def second(op: Op, rw: Rewriter) -> Value | None:
        return None

    both = a + b
    assert both.table == {AddOp: [first, second], SubOp: [second]}
    assert a.table == {AddOp: [first]}


def test_what_is_dead() -> None:
    """Ops without effects but reading and allocating are dead when unused; terminators and functions never."""
    kept = {
        "store",
        "atomic_rmw",
        "atomic_cas",
        "descriptor_store",
        "assert",
        "print",
        "barrier",
        "warp_barrier",
        "breakpoint",
        "check",
        "assume",
        "call",
    }
    kept |= {
        "return",
        "yield",
        "condition",
        "func",
        "local_store",
        "async_copy",
        "async_commit",
        "async_wait",
        "async_copy_mbarrier_arrive",
        "tensor_copy",
        "mbarrier_init",
        "mbarrier_arrive",
        "mbarrier_arrive_expect_tx",
        "mbarrier_wait",
        "ping_pong",
        "descriptor_scatter",
        "volatile_asm",
        "special_register",
        "grid_dependency",
        "trace_begin",
        "trace_record",
        "trace_end",
    }
    for opcode, body in SAMPLES.items():
        module = parse_module(kernel(body))
        op = next(op for op in module.walk() if op.opcode == opcode)
        for r in op.results:
            for user in r.users():
                user.drop_operands()
        assert is_dead(op) == (opcode not in kept), opcode
