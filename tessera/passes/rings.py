"""What both teams of a split program know of a ring of buffers in shared memory (passes/specialize.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tessera.dtypes import int32
from tessera.ir import Builder, Value
from tessera.ops import (
    AddOp,
    CmpOp,
    ConstOp,
    DescriptorLoadOp,
    ForOp,
    LocalAllocOp,
    LocalTransOp,
    SelectOp,
    WgmmaOp,
    WgmmaWaitOp,
    XorOp,
)  # fmt: skip


class CannotSplit(Exception):
    """Why a function stays whole."""


@dataclass(slots=True)
class Ring:
    """The tiles that one loop loads: buffers, barriers, and the loads with their allocations."""

    loop: ForOp
    loads: list[DescriptorLoadOp]
    allocs: list[LocalAllocOp]
    stages: int = 0
    buffers: list[Value] = field(default_factory=lambda: [])
    full: Any = None
    empty: Any = None

    @property
    def bytes(self) -> int:
        return sum(a.bytes for a in self.allocs)


def start_const(b: Builder, value: int) -> Value:
    return b.emit(ConstOp(value=value, results=[int32]))


def advance(b: Builder, slot: Value, phase: Value, stages: int) -> tuple[Value, Value]:
    """The next buffer, and the phase of its barriers."""
    following = b.emit(AddOp(slot, start_const(b, 1)))
    wraps = b.emit(CmpOp(following, start_const(b, stages), predicate="eq"))
    turned = b.emit(XorOp(phase, start_const(b, 1)))
    return (
        b.emit(SelectOp(wraps, start_const(b, 0), following)),
        b.emit(SelectOp(wraps, turned, phase)),
    )


def read_by_products(views: list[Value]) -> bool:
    work = list(views)
    while work:
        for user in work.pop().users():
            if isinstance(user, LocalTransOp):
                work.append(user.result)
            elif not isinstance(user, WgmmaOp | WgmmaWaitOp):
                return False
    return True
