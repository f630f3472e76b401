"""Rewrites IR by small rules in tables, with a worklist, until nothing changes.

    RULES = RuleSet()

    @rule(RULES, AddOp)
    def add_zero(op: AddOp, rw: Rewriter) -> Value | None:
        '''%x + 0  →  %x'''
        return op.lhs if is_zero(op.rhs) else None

A rule returns None for "no match", a value (or several) that replaces the op's results, or the op itself if it was
changed in place. New ops are made through `rw.emit`, before the op being rewritten; operands are changed through
`rw.set_operands`. Unused pure ops are removed on the way. Tables are combined with `+`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.ir.applications import may_apply, note_application
from tessera.ir.builder import AnyOp, Builder
from tessera.ir.core import Block, Effect, Module, Op, Value

RuleFn = Callable[..., "Value | Sequence[Value] | Op | None"]


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules by op class; those of a class are tried in order of registration."""

    table: dict[type[Op], list[RuleFn]]

    def __init__(self, table: dict[type[Op], list[RuleFn]] | None = None):
        object.__setattr__(self, "table", {} if table is None else table)

    def __add__(self, other: RuleSet) -> RuleSet:
        merged = {cls: list(rules) for cls, rules in self.table.items()}
        for cls, rules in other.table.items():
            merged.setdefault(cls, []).extend(rules)
        return RuleSet(merged)


def rule(rules: RuleSet, *classes: type[Op]) -> Callable[[RuleFn], RuleFn]:
    """Register a function as a rule for ops of exactly these classes."""

    def register(fn: RuleFn) -> RuleFn:
        for cls in classes:
            rules.table.setdefault(cls, []).append(fn)
        return fn

    return register


class Rewriter:
    """Applies a rule set to everything inside a module, and counts matches in `hits` (rule name → count)."""

    def __init__(self, rules: RuleSet, optimization: str = ""):
        self.rules = rules.table
        self.optimization = optimization  # the optimisation whose applications matches are
        self.builder = Builder()
        self.work: list[Op] = []
        self.queued: set[Op] = set()
        self.hits: dict[str, int] = {}

    def emit(self, op: Op) -> Value:
        """Insert a new op with one result before the op being rewritten."""
        self.push(op)
        return self.builder.emit(op)

    def insert(self, op: AnyOp) -> AnyOp:
        """Insert a new op before the op being rewritten."""
        self.push(op)
        return self.builder.insert(op)

    def set_operands(self, op: Op, *args: Value | Sequence[Value] | None) -> None:
        """Call `op.set_operands`, and revisit what defined the old operands, which may be unused now."""
        old = [v.op for v in op.operands]
        op.set_operands(*args)
        for definer in old:
            if definer is not None:
                self.push(definer)

    def replace_uses(self, old: Value, new: Value) -> None:
        """Call `old.replace_all_uses(new)`, and revisit the users."""
        for user in old.users():
            self.push(user)
        old.replace_all_uses(new)

    def push(self, op: Op) -> None:
        """Visit an op (again)."""
        if op not in self.queued:
            self.queued.add(op)
            self.work.append(op)

    def run(self, module: Module) -> bool:
        """Rewrite until no rule matches; return whether anything changed. Unused pure ops are removed on the way."""
        for op in reversed(list(module.walk())):
            self.push(op)
        changed, allowed = False, self._is_allowed()
        while self.work and allowed:
            op = self.work.pop()
            self.queued.discard(op)
            if lies_in(op.parent, module.body) and self._visit(op):
                changed, allowed = True, self._is_allowed()
        return changed

    def _is_allowed(self) -> bool:
        return not self.optimization or may_apply(self.optimization)

    def _visit(self, op: Op) -> bool:
        if is_dead(op):
            self._erase(op)
            return True
        for fn in self.rules.get(type(op), ()):
            self.builder.block, self.builder.before, self.builder.loc = op.parent, op, op.loc
            new = fn(op, self)
            if new is None:
                continue
            name = fn.__name__
            self.hits[name] = self.hits.get(name, 0) + 1
            if self.optimization:
                note_application(self.optimization, op, name)
            self._replace(op, new)
            return True
        return False

    def _replace(self, op: Op, new: Value | Sequence[Value] | Op) -> None:
        if isinstance(new, Op):
            self.push(new)
            for r in new.results:
                for user in r.users():
                    self.push(user)
            return
        values = [new] if isinstance(new, Value) else list(new)
        for old, value in zip(op.results, values, strict=True):
            self.replace_uses(old, value)
        self._erase(op)

    def _erase(self, op: Op) -> None:
        operands = list(op.operands)
        for inner in op.walk():
            operands += inner.operands
        op.erase()
        for v in operands:
            if v.op is not None:
                self.push(v.op)


def lies_in(block: Block | None, outer: Block) -> bool:
    """Whether a block is `outer`, or inside an op of it."""
    while block is not None and block is not outer:
        op = block.parent
        block = op.parent if op is not None else None
    return block is outer


def is_dead(op: Op) -> bool:
    """Whether an op has no used result and no effect but reading."""
    if op.terminator or op.parent_op() is None or any(r.uses for r in op.results):
        return False
    return not op.all_effects() & (Effect.WRITE | Effect.SYNC)
