"""Defines values, ops, blocks and the module: SSA with structured regions and use lists. No opcode is known here.

An op class declares its operands, attributes and regions as fields, in the order of its text form:

    class LoadOp(Op, opcode="load", effects=Effect.READ):
        ptr: Value = operand()
        mask: Value | None = operand(optional=True)
        cache: str = attr(default="")
        def infer(self): ...        # result types from operands and attributes
        def verify(self): ...       # raise through `require`

Every region holds exactly one block. An op's operands live in one flat list; optional and variadic fields add a
tuple of segment lengths. Blocks are doubly linked lists, so that inserting and erasing cost the same anywhere."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

from tessera.errors import IRError, Loc
from tessera.ir.fields import Field, accessor, attr, clock, operand, region
from tessera.ir.types import Type

__all__ = [
    "OPCODES", "Attributes", "Block", "Effect", "Module", "Op", "Use", "Value", "attr", "operand", "region", "require",
]  # fmt: skip

OPCODES: dict[str, type[Op]] = {}
Attributes = dict[str, Any]  # by name; each value has the type that the op's field declares


class Effect(enum.Flag):
    """What an op does besides computing its results. Ops without effects may be merged, moved and removed."""

    NONE = 0
    READ = enum.auto()  # reads memory: may not cross a write or a sync
    WRITE = enum.auto()  # writes memory, prints, asserts
    SYNC = enum.auto()  # orders memory between threads
    ALLOC = enum.auto()  # allocates memory: may be removed, but not merged or moved


Use = tuple["Op", int]


class Value:
    """The result of an op or an argument of a block."""

    __slots__ = ("index", "name", "owner", "type", "uses")

    def __init__(self, type: Any, owner: Op | Block, index: int, name: str = ""):
        self.type = type
        self.owner = owner
        self.index = index
        self.name = name  # of the Python variable that it defines; for readers only
        self.uses: dict[Use, None] = {}

    @property
    def op(self) -> Op | None:
        """The op that defines this value; None for a block argument."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def block(self) -> Block | None:
        return self.owner.parent if isinstance(self.owner, Op) else self.owner

    def users(self) -> list[Op]:
        """The ops that use this value, each once."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def replace_all_uses(self, new: Value) -> None:
        if new is self:
            return
        for op, index in list(self.uses):
            op.set_operand(index, new)
        if self.name and not new.name:
            new.name = self.name

    def __repr__(self) -> str:
        return f"<{self.name or 'value'}: {getattr(self.type, 'short', self.type)}>"


class Op:
    """Base of all operations. Subclasses register themselves under their opcode."""

    opcode: ClassVar[str] = ""
    effects: ClassVar[Effect] = Effect.NONE
    terminator: ClassVar[bool] = False
    operand_fields: ClassVar[tuple[Field, ...]] = ()
    attr_fields: ClassVar[tuple[Field, ...]] = ()
    region_fields: ClassVar[tuple[Field, ...]] = ()
    _simple: ClassVar[bool] = True

    __slots__ = (
        "attrs",
        "changed",
        "loc",
        "next",
        "operands",
        "parent",
        "placed",
        "prev",
        "regions",
        "results",
        "segments",
    )

    def __init_subclass__(
        cls,
        *,
        opcode: str = "",
        effects: Effect | None = None,
        terminator: bool = False,
        **kwargs: object,
    ):
        super().__init_subclass__(**kwargs)
        if effects is not None:
            cls.effects = effects
        cls.terminator = terminator or cls.terminator
        groups: dict[str, list[Field]] = {
            "operand": list(cls.operand_fields), "attr": list(cls.attr_fields), "region": list(cls.region_fields)
        }  # fmt: skip
        declared = [(n, f) for n, f in vars(cls).items() if isinstance(f, Field)]
        for name, f in declared:
            f.name, f.position = name, len(groups[f.kind])
            groups[f.kind].append(f)
        cls.operand_fields, cls.attr_fields, cls.region_fields = map(tuple, groups.values())
        cls._simple = not any(f.optional or f.variadic for f in cls.operand_fields)
        for f in (*cls.operand_fields, *cls.attr_fields, *cls.region_fields):
            setattr(cls, f.name, accessor(f, cls._simple))  # again, in case a base has fewer fields
        if opcode:
            if opcode in OPCODES:
                raise TypeError(f"opcode {opcode!r} is defined twice")
            cls.opcode = opcode
            OPCODES[opcode] = cls

    def __init__(
        self,
        *args: Value | Sequence[Value] | None,
        results: Sequence[Any] | None = None,
        regions: Sequence[Block] = (),
        loc: Loc | None = None,
        names: Sequence[str] = (),
        **attrs: Any,
    ):
        self.prev: Op | None = None
        self.next: Op | None = None
        self.parent: Block | None = None
        self.placed = self.changed = clock.now  # when made or moved; when changed otherwise
        self.loc = loc
        self._take_operands(args)
        self.attrs: Attributes = attrs
        for f in self.attr_fields:
            if f.name not in attrs:
                if f.default is ...:
                    raise TypeError(f"{self.opcode}: attribute {f.name!r} is missing")
                attrs[f.name] = f.default
        self.regions: list[Block] = list(regions) or [
            Block(parent=self) for _ in self.region_fields
        ]
        for block in self.regions:
            block.parent = self
        types = self.infer() if results is None else results
        self.results: list[Value] = [
            Value(t, self, i, names[i] if i < len(names) else "") for i, t in enumerate(types)
        ]

    def _take_operands(self, args: Sequence[Value | Sequence[Value] | None]) -> None:
        self.operands: list[Value] = []
        self.segments: tuple[int, ...] | None = None
        if self._simple:
            self.operands.extend(args)  # type: ignore[arg-type]
        else:
            self._set_segments(args)
        for i, v in enumerate(self.operands):
            v.uses[self, i] = None

    def _set_segments(self, args: Sequence[Value | Sequence[Value] | None]) -> None:
        lengths: list[int] = []
        padded = [*args, *[None] * (len(self.operand_fields) - len(args))]
        for f, a in zip(self.operand_fields, padded, strict=True):
            if f.variadic:
                values: Sequence[Value] = a or ()  # type: ignore[assignment]
                self.operands.extend(values)
                lengths.append(len(values))
            elif a is None:
                lengths.append(0)
            else:
                self.operands.append(a)  # type: ignore[arg-type]
                lengths.append(1)
        self.segments = tuple(lengths)

    # --- to be refined by op classes --------------------------------------------------------------------
    def infer(self) -> Sequence[Type]:
        """Return the result types by operands, attributes and regions; ops without a rule are given `results=`."""
        return ()

    def verify(self) -> None:
        """Check what the fields cannot express; raise through `require`."""

    # --- operands ------------------------------------------------------------------------------------------
    def segment(self, position: int) -> slice:
        """Return where the operands of the field at `position` are in the flat list."""
        if self.segments is None:
            return slice(position, position + 1)
        start = sum(self.segments[:position])
        return slice(start, start + self.segments[position])

    def set_operand(self, index: int, value: Value) -> None:
        old = self.operands[index]
        if old is not value:
            del old.uses[self, index]
            self.operands[index] = value
            value.uses[self, index] = None
            self.changed = clock.now

    def set_operands(self, *args: Value | Sequence[Value] | None) -> None:
        """Replace all operands, given by field as in the constructor."""
        self.drop_operands()
        self.changed = clock.now
        self._take_operands(args)

    def drop_operands(self) -> None:
        for i, v in enumerate(self.operands):
            v.uses.pop((self, i), None)

    @property
    def result(self) -> Value:
        """The only result."""
        (r,) = self.results
        return r

    def replace_by(self, values: Sequence[Value]) -> None:
        """Let every use of the results use `values`, then erase this op."""
        for old, new in zip(self.results, values, strict=True):
            old.replace_all_uses(new)
        self.erase()

    # --- position -------------------------------------------------------------------------------------------
    def detach(self) -> None:
        block = self.parent
        assert block is not None
        if self.prev is not None:
            self.prev.next = self.next
        else:
            block.first = self.next
        if self.next is not None:
            self.next.prev = self.prev
        else:
            block.last = self.prev
        self.prev = self.next = self.parent = None
        self.touch()
        self.placed = clock.now
        if self.terminator and block.parent is not None:
            block.parent.changed = clock.now

    def touch(self) -> None:
        """Record that this op changed, so that its users are verified again."""
        self.changed = clock.now
        for r in self.results:
            for user, _ in r.uses:
                user.changed = clock.now

    def erase(self) -> None:
        """Remove the op and all inside it. Its results must have no uses left."""
        assert not any(r.uses for r in self.results), f"{self.opcode} is still in use"
        for block in self.regions:
            for op in reversed(list(block)):
                for r in op.results:
                    r.uses.clear()
                op.erase()
        self.drop_operands()
        if self.parent is not None:
            self.detach()

    def move_before(self, other: Op) -> None:
        self.detach()
        assert other.parent is not None
        other.parent.insert_before(other, self)

    def parent_op(self) -> Op | None:
        return self.parent.parent if self.parent is not None else None

    def ancestors(self) -> Iterator[Op]:
        """Yield the ops around this one, from the innermost on."""
        op: Op | None = self
        while (op := op.parent_op()) is not None:
            yield op

    def is_inside(self, ancestor: Op) -> bool:
        """Whether this op is in a region of `ancestor`, at any depth."""
        return ancestor in self.ancestors()

    # --- everything below it -----------------------------------------------------------------------------------
    def walk(self) -> Iterator[Op]:
        """This op and all ops inside it, outer first. Erasing the op just yielded is allowed."""
        yield self
        for block in self.regions:
            yield from block.walk()

    def all_blocks(self) -> list[Block]:
        """Return the blocks inside this op, each before those inside it."""
        found: list[Block] = []
        for block in self.regions:
            found.append(block)
            for op in block:
                found += op.all_blocks()
        return found

    def all_effects(self) -> Effect:
        """Return the effects of this op and of all ops inside it."""
        found = self.effects
        for block in self.regions:
            for op in block:
                found |= op.all_effects()
        return found

    def clone(self, mapping: dict[Value, Value] | None = None) -> Self:
        """Return a detached copy; operands are looked up in `mapping`, which gains the results and block arguments."""
        mapping = {} if mapping is None else mapping
        new: Self = object.__new__(type(self))
        new.prev = new.next = new.parent = None
        new.placed = new.changed = clock.now
        new.loc, new.segments, new.attrs = self.loc, self.segments, dict(self.attrs)
        new.operands = [mapping.get(v, v) for v in self.operands]
        for i, v in enumerate(new.operands):
            v.uses[new, i] = None
        new.results = [Value(r.type, new, r.index, r.name) for r in self.results]
        new.regions = [block.clone(mapping, new) for block in self.regions]
        mapping.update(zip(self.results, new.results, strict=True))
        return new

    def __repr__(self) -> str:
        return f"<op {self.opcode}>"


class Block:
    """A list of ops with arguments; the last op is the terminator."""

    __slots__ = ("args", "first", "last", "parent")

    def __init__(
        self, arg_types: Sequence[Type] = (), parent: Op | None = None, names: Sequence[str] = ()
    ):
        self.parent = parent
        self.first: Op | None = None
        self.last: Op | None = None
        self.args: list[Value] = [
            Value(t, self, i, names[i] if i < len(names) else "") for i, t in enumerate(arg_types)
        ]

    def add_arg(self, type: object, name: str = "") -> Value:
        return self.insert_arg(len(self.args), type, name)

    def insert_arg(self, index: int, type: object, name: str = "") -> Value:
        self.args.insert(index, Value(type, self, index, name))
        self._number_args()
        return self.args[index]

    def erase_arg(self, index: int) -> None:
        assert not self.args[index].uses
        del self.args[index]
        self._number_args()

    def _number_args(self) -> None:
        for i, a in enumerate(self.args):
            a.index = i
        if self.parent is not None:
            self.parent.changed = clock.now

    def __iter__(self) -> Iterator[Op]:
        op = self.first
        while op is not None:
            following = op.next  # so that the loop's body may erase or move `op`
            yield op
            op = following

    def __reversed__(self) -> Iterator[Op]:
        op = self.last
        while op is not None:
            before = op.prev
            yield op
            op = before

    def walk(self) -> Iterator[Op]:
        for op in self:
            yield op
            for block in op.regions:  # of most ops none, which need no generator
                yield from block.walk()

    @property
    def terminator(self) -> Op:
        assert self.last is not None and self.last.terminator
        return self.last

    def append(self, op: Op) -> None:
        op.parent, op.prev, op.next = self, self.last, None
        if self.last is None:
            self.first = op
        else:
            self.last.next = op
        self.last = op

    def insert_before(self, other: Op, op: Op) -> None:
        op.parent, op.prev, op.next = self, other.prev, other
        if other.prev is None:
            self.first = op
        else:
            other.prev.next = op
        other.prev = op

    def clone(self, mapping: dict[Value, Value], parent: Op | None = None) -> Block:
        new = Block([a.type for a in self.args], parent, [a.name for a in self.args])
        mapping.update(zip(self.args, new.args, strict=True))
        for op in self:
            new.append(op.clone(mapping))
        return new


class Module:
    """A list of functions and the facts that hold for the whole program (`num_warps`, target name, …)."""

    def __init__(self, **attrs: Any):
        self.body = Block()
        self.attrs: Attributes = attrs

    @property
    def functions(self) -> list[Op]:
        return list(self.body)

    def function(self, name: str) -> Op:
        for f in self.body:
            if f.attrs.get("name") == name:
                return f
        raise KeyError(name)

    def walk(self) -> Iterator[Op]:
        return self.body.walk()

    def clone(self) -> Module:
        new = Module(**self.attrs)
        new.body = self.body.clone({})
        return new


def require(condition: object, op: Op, message: str | Callable[[], str]) -> None:
    """Raise the verifier's error for `op` unless `condition` holds."""
    if not condition:
        text = message if isinstance(message, str) else message()
        raise IRError(f"{op.opcode}: {text}", loc=op.loc)
