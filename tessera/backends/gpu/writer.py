"""Writes LLVM IR as text: SSA names, labels, declarations, with value numbering.

`pure` returns the same name for the same text as long as the first instruction dominates. Copies of an element in
several registers, and addresses that registers share, then cost one instruction without a later pass. `offsets` records
which values are a base plus a constant: memory accesses share the base and put the constant into the instruction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tessera.backends.gpu.line_info import LineTable


class ModuleText:
    """The whole module: declarations and globals, each written once, then the functions."""

    def __init__(self, head: Sequence[str] = ()) -> None:
        self.head = list(head)
        self.declarations: dict[str, None] = {}
        self.globals: list[str] = []
        self.functions: list[str] = []
        self.defined: set[str] = set()  # names of internal functions written so far
        self.lines: LineTable | None = None  # set if source lines are wanted
        self.keeps_loops = False  # whether some loop must not be unrolled
        self._strings: dict[bytes, str] = {}

    def declare(self, text: str) -> None:
        self.declarations[text] = None

    def constant(self, text: str) -> None:
        """Add a global definition, once."""
        if text not in self.globals:
            self.globals.append(text)

    def string(self, data: bytes) -> str:
        """Return the name of a constant global that holds `data` and a final zero byte."""
        found = self._strings.get(data)
        if found is None:
            found = self._strings[data] = f"@text{len(self._strings)}"
            body = "".join(
                chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data
            )
            size = len(data) + 1
            self.globals.append(
                f'{found} = private unnamed_addr addrspace(1) constant [{size} x i8] c"{body}\\00"'
            )
        return found

    def render(self) -> str:
        return (
            "\n".join(
                [
                    *self.head,
                    *self.globals,
                    *self.declarations,
                    *self.functions,
                    ATTRIBUTES,
                    *(KEPT_LOOPS if self.keeps_loops else ()),
                    *(self.lines.render() if self.lines is not None else ()),
                ]
            )
            + "\n"
        )


ATTRIBUTES = (
    "attributes #1 = { convergent nounwind }\nattributes #2 = { convergent nounwind memory(none) }"
)


# Numbers beyond those of any line table.
KEPT_LOOP = ", !llvm.loop !1000000"
KEPT_LOOPS = (
    "!1000000 = distinct !{!1000000, !1000001}",
    '!1000001 = !{!"llvm.loop.unroll.disable"}',
)


class Writer:
    """The body of one function."""

    __slots__ = (
        "_hoisted", "_numbered", "_of_thread", "_trail", "below", "block", "chosen", "count", "halves", "limits",
        "lines", "module", "offsets", "parts", "prologue", "packed",
    )  # fmt: skip

    def __init__(self, module: ModuleText) -> None:
        self.module = module
        self.lines: list[str] = []
        self.count = 0
        self.block = "entry"
        # Instructions on the thread index alone, at the start of the function.
        self.prologue: list[str] = []
        self._hoisted: dict[str, str] = {}
        self._of_thread: set[str] = set()  # the names of those values
        self._numbered: dict[str, str] = {}
        self._trail: list[list[str]] = [[]]
        # Value -> (base, constant): ints and pointers.
        self.offsets: dict[str, tuple[str, int]] = {}
        self.limits: dict[str, int] = {}  # names that are in 0..n for all threads
        self.below: dict[str, tuple[str, str, int]] = {}  # 0 <= value < end: (type, value, end)
        self.halves: dict[tuple[str, str], str] = {}  # elements of a 2-vector -> the vector
        # Unpacked narrow elements -> the register that held them.
        self.packed: dict[tuple[str, ...], str] = {}
        self.parts: dict[
            str, tuple[str, int]
        ] = {}  # a byte of a register -> (4-vector, its number)
        # (condition, a select by it) -> what it is where the condition holds, and where not.
        self.chosen: dict[tuple[str, str], tuple[str, str]] = {}

    # --- instructions ---------------------------------------------------------------------------------
    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def pure(self, text: str) -> str:
        """Return the value of an instruction without effects."""
        found = self._hoisted.get(text) or self._numbered.get(text)
        if found is None:
            self.count += 1
            found = f"%v{self.count}"
            self.lines.append(f"  {found} = {text}")
            if self.lines is self.prologue:
                self._hoisted[text] = found
                self._of_thread.add(found)
            else:
                self._numbered[text] = found
                self._trail[-1].append(text)
        elif self.lines is self.prologue and text not in self._hoisted:
            self.count += 1
            found = self._hoisted[text] = f"%v{self.count}"
            self._of_thread.add(found)
            self.lines.append(f"  {found} = {text}")
        return found

    def is_of_thread(self, value: str) -> bool:
        """Whether a value depends only on the thread index (and is therefore small)."""
        return value in self._of_thread

    @contextmanager
    def hoist(self) -> Generator[None]:
        """Write to the start of the function; only for values that depend on nothing but the thread index."""
        saved, self.lines = self.lines, self.prologue
        try:
            yield
        finally:
            self.lines = saved

    def emit(self, text: str) -> str:
        """Return the value of an instruction that must stay in place."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def call(self, result: str, name: str, args: Sequence[str], *, pure: bool = True) -> str:
        """Call the intrinsic `name` with typed arguments ("i32 %x"), and declare it."""
        types = ", ".join([a.rsplit(" ", 1)[0] for a in args])
        self.module.declare(f"declare {result} @{name}({types})")
        text = f"call {result} @{name}({', '.join(args)})"
        return self.pure(text) if pure else self.emit(text)

    def call_void(self, name: str, args: Sequence[str]) -> None:
        types = ", ".join([a.rsplit(" ", 1)[0] for a in args])
        self.module.declare(f"declare void @{name}({types})")
        self.do(f"call void @{name}({', '.join(args)})")

    def asm(
        self,
        text: str,
        constraints: str,
        args: Sequence[str],
        result: str = "void",
        *,
        pure: bool = False,
        memory: bool = True,
    ) -> str:
        """Emit inline assembly. If not `pure`, it stays in order with memory accesses and other assembly."""
        if pure:
            return self.pure(f'call {result} asm "{text}", "{constraints}"({", ".join(args)}) #2')
        if memory:
            constraints += ",~{memory}" if constraints else "~{memory}"
        call = f'call {result} asm sideeffect "{text}", "{constraints}"({", ".join(args)}) #1'
        if result == "void":
            self.do(call)
            return ""
        return self.emit(call)

    def unpack_struct(self, value: str, type: str, count: int) -> list[str]:
        return [self.emit(f"extractvalue {type} {value}, {i}") for i in range(count)]

    # --- blocks -----------------------------------------------------------------------------------------
    def label(self, base: str) -> str:
        self.count += 1
        return f"{base}{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str, *, keep: bool = False) -> None:
        """Branch; `keep`: this is the back edge of a loop that must not be unrolled."""
        self.lines.append(f"  br label %{label}{self._kept(keep)}")

    def branch_if(self, condition: str, then: str, otherwise: str, *, keep: bool = False) -> None:
        self.lines.append(
            f"  br i1 {condition}, label %{then}, label %{otherwise}{self._kept(keep)}"
        )

    def _kept(self, keep: bool) -> str:
        self.module.keeps_loops |= keep
        return KEPT_LOOP if keep else ""

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget values computed inside when it ends, since that code need not run."""
        self._trail.append([])
        try:
            yield
        finally:
            for text in self._trail.pop():
                del self._numbered[text]

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Write code for the threads where `condition` holds."""
        then, after = self.label("then"), self.label("after")
        self.branch_if(condition, then, after)
        with self.scope():
            self.start(then)
            yield
        self.branch(after)
        self.start(after)

    @contextmanager
    def ending(self, condition: str) -> Generator[None]:
        """Write code for the threads where `condition` holds, which end there.

        The code that follows has one predecessor, so that LLVM may move uses of a load across it.
        """
        then, after = self.label("then"), self.label("after")
        self.branch_if(condition, then, after)
        with self.scope():
            self.start(then)
            yield
            self.lines.append("  unreachable")
        self.start(after)

    # --- integers ----------------------------------------------------------------------------------------
    def add(self, type: str, a: str, b: str) -> str:
        """Return a + b; a constant part stays separate (`offsets`)."""
        if b == "0":
            return a
        if a == "0":
            return b
        base_a, const_a = split(self.offsets, a)
        base_b, const_b = split(self.offsets, b)
        constant = const_a + const_b
        if base_a and base_b:
            base = self.pure(f"add {type} {base_a}, {base_b}") if base_a != base_b else None
            if base is None:
                base = self.pure(f"shl {type} {base_a}, 1")
        else:
            base = base_a or base_b
        return self.add_const(type, base, constant)

    def add_const(self, type: str, base: str, constant: int) -> str:
        """Return base + constant for a base without a constant part; an empty base is 0."""
        constant = wrap(constant, int(type[1:]))
        if not base:
            return str(constant)
        if constant == 0:
            return base
        name = self.pure(f"add {type} {base}, {constant}")
        self.offsets[name] = (base, constant)
        return name

    def mul(self, type: str, a: str, b: str) -> str:
        if is_number(a):
            a, b = b, a
        if not is_number(b):
            return self.pure(f"mul {type} {a}, {b}")
        factor = int(b)
        if factor in (0, 1):
            return a if factor else "0"
        base, constant = split(self.offsets, a)
        bits = int(type[1:])
        if not base:
            return str(wrap(constant * factor, bits))
        if factor > 0 and factor & (factor - 1) == 0:
            scaled = self.pure(f"shl {type} {base}, {factor.bit_length() - 1}")
        else:
            scaled = self.pure(f"mul {type} {base}, {factor}")
        return self.add_const(type, scaled, constant * factor)

    def and_(self, type: str, a: str, b: str) -> str:
        """Return the bitwise and; for i1, the literals true and false are folded."""
        if type == "i1":
            if "false" in (a, b):
                return "false"
            if a == "true" or a == b:
                return b
            if b == "true":
                return a
        return self.pure(f"and {type} {a}, {b}")

    def xor(self, type: str, a: str, b: str) -> str:
        if b == "0":
            return a
        if a == "0":
            return b
        return self.pure(f"xor {type} {a}, {b}")

    def gep(self, pointer: str, base: str, constant: int, space: int = 1) -> str:
        """Return pointer + base (i64 or i32 value, may be empty) + constant, in bytes."""
        root, old = split(self.offsets, pointer)
        if base:
            width = "i64" if space == 1 else "i32"
            root = self.pure(f"getelementptr i8, ptr addrspace({space}) {root}, {width} {base}")
        return self.gep_const(root, old + constant, space)

    def gep_const(self, root: str, constant: int, space: int = 1) -> str:
        if constant == 0:
            return root
        name = self.pure(f"getelementptr i8, ptr addrspace({space}) {root}, i64 {constant}")
        self.offsets[name] = (root, constant)
        return name

    def offset_const(self, type: str, base: str, constant: int) -> str:
        """Return base + constant for an integer or a pointer (bytes)."""
        if constant == 0 and base:
            return base
        if type.startswith("ptr"):
            return self.gep_const(base, constant)
        return self.add_const(type, base, constant)

    # --- pairs of 16-bit floats ----------------------------------------------------------------------------
    def pair(self, type: str, low: str, high: str) -> str:
        """Return <2 x type> of two elements, or the vector that they came from."""
        found = self.halves.get((low, high))
        if found is None:
            first = self.pure(f"insertelement <2 x {type}> poison, {type} {low}, i32 0")
            found = self.pure(f"insertelement <2 x {type}> {first}, {type} {high}, i32 1")
        return found

    def unpair(self, type: str, vector: str) -> tuple[str, str]:
        low = self.pure(f"extractelement <2 x {type}> {vector}, i32 0")
        high = self.pure(f"extractelement <2 x {type}> {vector}, i32 1")
        self.halves.setdefault((low, high), vector)
        return low, high


def is_number(name: str) -> bool:
    """Whether this is an integer literal."""
    return name[0] in "-0123456789"


def wrap(value: int, bits: int) -> int:
    """Return `value` modulo 2**bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def split(offsets: dict[str, tuple[str, int]], name: str) -> tuple[str, int]:
    """Return (base, constant) of an integer or (base, bytes) of a pointer; the base of a literal is empty."""
    if is_number(name):
        return "", int(name)
    return offsets.get(name, (name, 0))
