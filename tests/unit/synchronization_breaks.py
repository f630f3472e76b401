"""Breaks the synchronisation of finished GPU IR in one place at a time, for the tests of its checker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tessera.analysis.synchronization.rules import RULES
from tessera.dtypes import int32
from tessera.ir import Builder, Module, Op
from tessera.ops import (
    AsyncCommitOp,
    AsyncCopyMbarrierArriveOp,
    AsyncWaitOp,
    BarrierOp,
    ConstOp,
    MbarrierArriveExpectTxOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    PingPongOp,
    WgmmaOp,
    WgmmaWaitOp,
    XorOp,
)  # fmt: skip

Change = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Break:
    """A copy of a module with one thing broken: `what` of `op`, an op of the module."""

    what: str
    op: Op
    module: Module

    @property
    def text(self) -> str:
        kept = {k: v for k, v in self.op.attrs.items() if v not in (False, 0, "", None, (), (0, 1))}
        where = f" at {self.op.loc.short()}" if self.op.loc is not None else ""
        around = self.op.parent_op()
        inside = around.opcode if around is not None else "module"
        return f"{self.what} of {self.op.opcode} {kept} in {inside}{where}"


def breaks(module: Module) -> Iterator[Break]:
    """One after another: each barrier, wait, arrival and fence of all functions, in each way that it can be broken."""
    for number, op in enumerate(module.walk()):
        for what, change in CHANGES.get(type(op), {}).items():
            broken = module.clone()
            target = next(x for i, x in enumerate(broken.walk()) if i == number)
            if change(target):
                yield Break(what, op, broken)


# --- changes: each says whether it changed anything -----------------------------------------------------------
def _delete(op: Op) -> bool:
    if any(r.uses for r in op.results):
        return False
    op.erase()
    return True


def _pass_on(op: Any) -> bool:
    if op.waited:
        return False
    op.replace_by([op.acc])
    return True


def _is_access(op: Op) -> bool:
    rule = RULES.get(type(op))
    return rule is not None and type(op) not in CHANGES and rule.applies(op)


def _later(op: Op) -> bool:
    """To the end of its block, if there is an access on the way."""
    block, crossed, other = op.parent, False, op.next
    assert block is not None
    while other is not None and not other.terminator:
        crossed |= _is_access(other) or bool(other.regions)
        other = other.next
    if crossed:
        op.move_before(block.terminator)
    return crossed


def _earlier(op: Op) -> bool:
    """To the start of its block, behind what its operands need, if there is an access on the way."""
    made = {v.op for v in op.operands[:3]}
    crossed, other = False, op.prev
    first: Op = op
    while other is not None and other not in made:
        crossed |= _is_access(other) or isinstance(other, WgmmaWaitOp)
        first, other = other, other.prev
    if crossed:
        if isinstance(op, MbarrierArriveOp):  # what is released and awaited comes later
            op.set_operands(op.bars, op.index, op.condition)
        op.move_before(first)
    return crossed


def _more_pending(op: Any) -> bool:
    if op.attrs.get("asynchronous") or op.attrs.get("waited"):  # then there is no wait
        return False
    op.pending += 1
    return True


def _off(name: str) -> Change:
    def change(op: Op) -> bool:
        had = bool(op.attrs.get(name))
        op.attrs[name] = False
        return had

    return change


def _on(name: str) -> Change:
    def change(op: Op) -> bool:
        had = bool(op.attrs.get(name))
        op.attrs[name] = True
        return not had

    return change


def _flip(number: int) -> Change:
    def change(op: Op) -> bool:
        b = Builder.before_op(op)
        one = b.emit(ConstOp(value=1, results=[int32]))
        op.set_operand(number, b.emit(XorOp(op.operands[number], one)))
        return True

    return change


def _row(number: int, by: int) -> Change:
    def change(op: Any) -> bool:
        if number >= len(op.counts) or op.counts[number] + by < 1:
            return False
        op.counts = tuple(n + by * (i == number) for i, n in enumerate(op.counts))
        return True

    return change


def _bytes(by: int) -> Change:
    def change(op: Any) -> bool:
        op.bytes += by
        return True

    return change


def _alone(op: Any) -> bool:
    several = op.ctas > 1
    op.ctas = 1
    return several


def _unawaited(op: Any) -> bool:
    had = bool(op.after)
    op.set_operands(op.bars, op.index, op.condition, op.released, ())
    return had


DELETION: dict[str, Change] = {"deletion": _delete}
ROWS = 12
CHANGES: dict[type[Op], dict[str, Change]] = {
    BarrierOp: {**DELETION, "delay": _later, "missing fence": _off("proxy")},
    AsyncCommitOp: DELETION,
    AsyncWaitOp: {**DELETION, "delay": _later, "one group less": _more_pending, "missing fence": _off("proxy")},
    AsyncCopyMbarrierArriveOp: DELETION,
    PingPongOp: DELETION,
    MbarrierInitOp: {
        **DELETION,
        **{f"one arrival more in row {i}": _row(i, 1) for i in range(ROWS)},
        **{f"one arrival less in row {i}": _row(i, -1) for i in range(ROWS)},
    },
    MbarrierArriveExpectTxOp: {**DELETION, "bytes less": _bytes(-16), "bytes more": _bytes(16)},
    MbarrierWaitOp: {
        **DELETION, "delay": _later, "parity": _flip(2), "missing fence": _off("proxy"),
        "missing fence for arrays": _off("fence"),
    },
    MbarrierArriveOp: {
        **DELETION, "haste": _earlier, "arrivals of warps": _off("groups"), "arrivals of groups": _on("groups"),
        "arrival at one block": _alone, "missing fence": _off("proxy"), "missing fence for arrays": _off("fence"),
        "missing wait for reads": _unawaited,
    },
    WgmmaOp: {"one product less": _more_pending, "missing wait": _on("asynchronous")},
    WgmmaWaitOp: {"deletion": _pass_on, "one product less": _more_pending, "missing wait": _on("waited")},
}  # fmt: skip
