"""Creates ops at an insertion point, giving each the current source location."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Self, TypeVar

from tessera.errors import Loc
from tessera.ir.core import Block, Op, Value

AnyOp = TypeVar("AnyOp", bound=Op)


class Builder:
    """Appends ops to `block`, or inserts them before the op `before` if one is given."""

    __slots__ = ("before", "block", "loc")

    def __init__(
        self, block: Block | None = None, before: Op | None = None, loc: Loc | None = None
    ):
        self.block = block if block is not None else (before.parent if before is not None else None)
        self.before = before
        self.loc = loc

    @classmethod
    def before_op(cls, op: Op) -> Self:
        return cls(op.parent, op, op.loc)

    @classmethod
    def after_op(cls, op: Op) -> Self:
        return cls(op.parent, op.next, op.loc)

    @classmethod
    def at_start(cls, block: Block) -> Self:
        return cls(block, block.first, block.first.loc if block.first is not None else None)

    def insert(self, op: AnyOp) -> AnyOp:
        assert self.block is not None
        if op.loc is None:
            op.loc = self.loc
        if self.before is None:
            self.block.append(op)
        else:
            self.block.insert_before(self.before, op)
        return op

    def emit(self, op: Op) -> Value:
        """Insert an op that has one result and return it."""
        return self.insert(op).result

    @contextmanager
    def at(self, block: Block, before: Op | None = None) -> Generator[Builder]:
        """Insert elsewhere within a `with` block."""
        saved = self.block, self.before
        self.block, self.before = block, before
        try:
            yield self
        finally:
            self.block, self.before = saved

    @contextmanager
    def located(self, loc: Loc | None) -> Generator[Builder]:
        """Give new ops another location within a `with` block; errors raised inside get it, too."""
        saved, self.loc = self.loc, loc
        try:
            if loc is None:
                yield self
            else:
                with loc:
                    yield self
        finally:
            self.loc = saved
