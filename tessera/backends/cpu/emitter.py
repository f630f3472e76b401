"""Writes the body of one LLVM function in nested scopes; each pure instruction goes to the outermost scope that it can.

A scope is a piece of straight-line code that is still growing: the function's entry, the body of an open loop, a
branch. `op("fadd float %a, %b")` looks at the operands' depths and appends the instruction to the deepest scope that
defines one of them, which is *before* the loops opened since. So loop-invariant code is hoisted by construction, and
the same text is never emitted twice in nested scopes. An instruction that may trap or reads memory (`read`) leaves only
loops that run at least once, and never the scope that last wrote its memory: each write makes a new version of the
memory (`new_version`), which belongs to the scope of the write. Instructions emitted by `here` are not moved.

    with em.loop(0, 128, 16) as i:             # i = 0, 16, ... 112
        p = em.op(f"getelementptr float, ptr %x, i64 {i}")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from tessera.backends.cpu.llvm_text import is_literal
from tessera.backends.elements.literals import splat_literal, vector_type
from tessera.errors import Loc

_NAMES = re.compile(r"%[\w.]+")
Text = str


class Scope:
    """Code under construction. `always`: runs at least once when its parent runs. `branch`: nothing is hoisted out."""

    __slots__ = ("always", "branch", "lines", "loc", "place", "stop", "table")

    def __init__(self, always: bool, branch: bool = False):
        self.lines: list[str] = []
        self.table: dict[str, str] = {}
        self.always, self.branch = always, branch
        self.loc: Loc | None = None  # of the last line
        self.place = ""  # the comment that names it
        self.stop = ""  # of a loop's body: an i1, whether this is the last iteration


def _advance(k: str, i: str, step: str, high: str, near: bool) -> list[str]:
    """Return the next index of a loop and whether it is below `high`. `near`: it is below 2^63. Otherwise the distance
    to `high` is compared with the step, which is right for every index."""
    if near:
        return [f"%next{k} = add nsw i64 {i}, {step}", f"%more{k} = icmp slt i64 %next{k}, {high}"]
    return [
        f"%next{k} = add i64 {i}, {step}", f"%rest{k} = sub i64 {high}, {i}",
        f"%more{k} = icmp ugt i64 %rest{k}, {step}",
    ]  # fmt: skip


class Emitter:
    """One function's text. `declarations` and `globals_` are shared by the functions of a module. With `line_info`
    comments give the source line of the instructions after them."""

    def __init__(
        self, declarations: dict[str, None], globals_: dict[str, None], line_info: bool = False
    ):
        self.line_info = line_info
        self.declarations, self.globals = declarations, globals_
        self.allocas: list[str] = []
        self.depth: dict[str, int] = {}
        self.scopes: list[Scope] = [Scope(True)]
        self.count = 0
        self.dry = False  # all code goes into the innermost scope, to be thrown away
        self.memory = 0  # version of everything outside the tile buffers: part of the key of reads
        self.written: list[int] = [0]  # of each version: index of the scope in which it was made
        # Reads and traps stay in their loop, after the checks before them.
        self.pinned = False
        self.flags = ""  # fast-math flags of sums, differences and products
        self.loc: Loc | None = None  # of what is being lowered
        # By the id of a location, which is kept here so that no other one gets the same.
        self.places: dict[int, tuple[Loc, str]] = {}

    def at(self, loc: Loc | None) -> Loc | None:
        """Set the location of what follows, if it is known; return the location before, to be restored."""
        before = self.loc
        if loc is not None and self.line_info:
            self.loc = loc
        return before

    def _write(self, scope: Scope, line: str) -> None:
        if scope.loc is not self.loc and self.loc is not None:
            place = self._place_of(self.loc)
            if scope.loc is None or place != scope.place:
                scope.lines.append(place)
            scope.loc, scope.place = self.loc, place
        scope.lines.append(line)

    def _place_of(self, loc: Loc) -> str:
        """Return the comment that says where `loc` is."""
        known = self.places.get(id(loc))
        if known is None:
            known = self.places[id(loc)] = loc, f"; {loc.line_chain()}"
        return known[1]

    def _closed(self) -> list[str]:
        """Close the innermost scope and return its lines. The code after it in the outer scope names its line again."""
        lines = self.scopes.pop().lines
        self.scopes[-1].loc = None
        return lines

    # --- instructions ------------------------------------------------------------------------------
    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def depth_of(self, text: str) -> int:
        """Return the index of the scope in which all names in `text` are defined."""
        return max(map(self.depth.__getitem__, _NAMES.findall(text)), default=0)

    def op(self, text: str) -> Text:
        """Emit a pure instruction; return its name, or that of an equal one in an open scope."""
        scopes = self.scopes
        natural = self.depth_of(text)
        last = len(scopes) - 1
        target = natural
        for i in range(last, natural, -1):
            if scopes[i].branch:
                target = i
                break
        return self._place(text, text, natural, target)

    def new_version(self) -> int:
        """Return a number for the content of some memory from here on."""
        self.written.append(len(self.scopes) - 1)
        return len(self.written) - 1

    def read(self, text: str, version: int) -> Text:
        """Emit a load or an instruction that may trap. Equal ones merge while `version` is the same."""
        scopes = self.scopes
        natural = min(max(self.depth_of(text), self.written[version]), len(scopes) - 1)
        target = natural
        for i in range(len(scopes) - 1, natural, -1):
            if self.pinned or not scopes[i].always or scopes[i].branch:
                target = i
                break
        return self._place(text, f"{text};{version}", target, target)

    def _place(self, text: str, key: str, first: int, target: int) -> Text:
        scopes = self.scopes
        if self.dry:
            target = len(scopes) - 1
        for i in range(first, target + 1):
            found = scopes[i].table.get(key)
            if found is not None:
                return found
        self.count += 1
        name = f"%v{self.count}"
        self._write(scopes[target], f"{name} = {text}")
        scopes[target].table[key] = name
        self.depth[name] = target
        return name

    def here(self, text: str) -> Text:
        """Emit an instruction with a result that is not moved."""
        name = self.fresh()
        self._write(self.scopes[-1], f"{name} = {text}")
        self.depth[name] = len(self.scopes) - 1
        return name

    def entry_op(self, text: str) -> Text:
        """Emit a pure instruction in the function's entry; its operands are defined there."""
        return self._place(text, text, 0, 0)

    def at_entry(self, text: str) -> None:
        """Emit an instruction without a result at the end of the function's entry."""
        self.scopes[-1 if self.dry else 0].lines.append(text)

    def stmt(self, text: str) -> None:
        """Emit an instruction without a result, which is not moved."""
        self._write(self.scopes[-1], text)

    def label(self, name: str) -> None:
        self.scopes[-1].lines.append(f"{name}:")

    def new_label(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def alloca(self, type_: str, count: int = 1, align: int = 64) -> Text:
        name = self.fresh()
        what = f"[{count} x {type_}]" if count > 1 else type_
        self.allocas.append(f"{name} = alloca {what}, align {align}")
        self.depth[name] = 0
        return name

    def parameter(self, name: str) -> Text:
        self.depth[name] = 0
        return name

    def declare(self, ret: str, name: str, *types: str) -> None:
        if not self.dry:
            self.declarations[f"declare {ret} @{name}({', '.join(types)})"] = None

    def call(self, ret: str, name: str, *args: str) -> Text:
        """Emit a pure call and declare the function. Arguments are `type text`, e.g. `<4 x float> %v3`."""
        self.declare(ret, name, *map(argument_type, args))
        return self.op(f"call {ret} @{name}({', '.join(args)})")

    def call_here(self, ret: str, name: str, *args: str) -> Text:
        self.declare(ret, name, *map(argument_type, args))
        text = f"call {ret} @{name}({', '.join(args)})"
        if ret == "void":
            self.stmt(text)
            return ""
        return self.here(text)

    # --- vectors ---------------------------------------------------------------------------------------
    def splat(self, element: str, text: str, lanes: int) -> Text:
        """Return a vector with a scalar in every lane."""
        if lanes == 1:
            return text
        if is_literal(text):
            return splat_literal(element, text, lanes)
        ty = vector_type(element, lanes)
        one = self.op(f"insertelement {ty} poison, {element} {text}, i64 0")
        return self.op(f"shufflevector {ty} {one}, {ty} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, element: str, a: str, b: str, lanes: int, order: list[int]) -> Text:
        """Return lanes `order` of the concatenation of two vectors of `lanes`; -1 is any lane."""
        ty = vector_type(element, lanes)
        mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in order)
        return self.op(f"shufflevector {ty} {a}, {ty} {b}, <{len(order)} x i32> <{mask}>")

    def concat(self, element: str, parts: list[Text], lanes: int) -> Text:
        """Concatenate several vectors of `lanes` each; their number is a power of two."""
        while len(parts) > 1:
            whole = list(range(2 * lanes))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffle(element, a, b, lanes, whole) for a, b in pairs]
            lanes *= 2
        return parts[0]

    def lane(self, element: str, text: str, lanes: int, index: int) -> Text:
        if lanes == 1:
            return text
        return self.op(f"extractelement {vector_type(element, lanes)} {text}, i64 {index}")

    # --- structure ---------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, low: int, high: int, step: int) -> Generator[int | Text]:
        """Emit a loop with constant bounds that runs at least once; yields the index, an int for one iteration."""
        if high - low <= step:
            yield low
            return
        with self.counted(str(low), str(high), str(step), always=True, guarded=False) as i:
            yield i

    @contextmanager
    def counted(
        self, low: str, high: str, step: str, always: bool, guarded: bool = True, near: bool = True
    ) -> Generator[Text]:
        """Emit for (i64 i = low; i < high; i += step). `guarded`: there may be no iteration. `always`: loop-invariant
        code would have been executed anyway, so that reads and traps may be hoisted. `near`: the number after the last
        one is known to be below 2^63."""
        k = self.new_label("")
        i = self.fresh()
        self.scopes.append(Scope(always))
        self.depth[i] = len(self.scopes) - 1
        yield i
        stop = self.scopes[-1].stop
        body = self._closed()
        lines = self.scopes[-1].lines
        enter = f"br label %head{k}"
        if guarded:
            lines.append(f"%any{k} = icmp slt i64 {low}, {high}")
            enter = f"br i1 %any{k}, label %head{k}, label %done{k}"
        lines += [f"br label %pre{k}", f"pre{k}:", enter, f"head{k}:"]
        lines.append(f"{i} = phi i64 [ {low}, %pre{k} ], [ %next{k}, %latch{k} ]")
        lines += body
        lines += [f"br label %latch{k}", f"latch{k}:", *_advance(k, i, step, high, near)]
        goes_on = f"%more{k}"
        if stop:
            goes_on = f"%again{k}"
            lines.append(f"{goes_on} = select i1 {stop}, i1 false, i1 %more{k}")
        lines += [f"br i1 {goes_on}, label %head{k}, label %done{k}", f"done{k}:"]

    def stop(self, condition: str) -> None:
        """End the innermost loop, one of `counted`, after the iteration in which `condition` (i1) is true."""
        self.scopes[-1].stop = condition

    @contextmanager
    def counted_in_blocks(
        self,
        low: str,
        high: str,
        step: str,
        span: str,
        between: Callable[[], None],
        near: bool = True,
    ) -> Generator[Text]:
        """Emit the loop of `counted`, which may have no iteration, in blocks of `span`, a multiple of `step`. `between`
        emits the code to run after each block but the last. Iterations compare with the end of their block instead of
        `high`, and no loop encloses the blocks: LLVM takes up to a third more time for deeper loop nests, and its loop
        strength reduction needs to know where this loop begins."""

        def end(first: str) -> Text:
            """Return the end of the block that begins at `first`."""
            far = self.call("i64", "llvm.sadd.sat.i64", f"i64 {first}", f"i64 {span}")
            return self.call("i64", "llvm.smin.i64", f"i64 {far}", f"i64 {high}")

        k = self.new_label("")
        i, to = self.fresh(), end(low)
        with self._lines(Scope(False)) as body:
            self.depth[i] = len(self.scopes) - 1
            yield i
        with self._lines(Scope(False, branch=True)) as pause:
            between()
            self.depth[f"%next{k}"] = len(self.scopes) - 1
            following = end(f"%next{k}")
        self.scopes[-1].lines += [
            f"%any{k} = icmp slt i64 {low}, {high}",
            f"br label %pre{k}", f"pre{k}:", f"br i1 %any{k}, label %head{k}, label %done{k}",
            f"head{k}:", f"{i} = phi i64 [ {low}, %pre{k} ], [ %next{k}, %again{k} ]",
            f"%end{k} = phi i64 [ {to}, %pre{k} ], [ %then{k}, %again{k} ]", *body, f"br label %latch{k}",
            f"latch{k}:", *_advance(k, i, step, f"%end{k}", near),
            f"br i1 %more{k}, label %again{k}, label %block{k}",
            f"block{k}:", f"%left{k} = icmp slt i64 %end{k}, {high}",
            f"br i1 %left{k}, label %pause{k}, label %done{k}",
            f"pause{k}:", *pause, f"br label %on{k}", f"on{k}:", f"br label %again{k}",
            f"again{k}:", f"%then{k} = phi i64 [ %end{k}, %latch{k} ], [ {following}, %on{k} ]", f"br label %head{k}",
            f"done{k}:",
        ]  # fmt: skip

    @contextmanager
    def _lines(self, scope: Scope) -> Generator[list[str]]:
        """Yield the lines of a scope that is open inside."""
        self.scopes.append(scope)
        yield scope.lines
        self._closed()

    @contextmanager
    def branch(self, condition: str, negate: bool = False) -> Generator[None]:
        """Emit code that runs if `condition` (i1)."""
        k = self.new_label("")
        self.scopes.append(Scope(False, branch=True))
        yield
        body = self._closed()
        lines = self.scopes[-1].lines
        targets = (f"%fi{k}", f"%then{k}") if negate else (f"%then{k}", f"%fi{k}")
        lines.append(f"br i1 {condition}, label {targets[0]}, label {targets[1]}")
        lines.append(f"then{k}:")
        lines += body
        lines += [f"br label %fi{k}", f"fi{k}:"]

    def choose(self, condition: str, then: Callable[[], None], other: Callable[[], None]) -> None:
        """Emit code that runs if `condition` (an i1, perhaps a literal), and code that runs if not."""
        if condition in ("true", "false"):
            (then if condition == "true" else other)()
            return
        k = self.new_label("")
        self.stmt(f"br i1 {condition}, label %then{k}, label %else{k}")
        for name, arm in (("then", then), ("else", other)):
            self.label(f"{name}{k}")
            with self.arm():
                arm()
            self.stmt(f"br label %fi{k}")
        self.label(f"fi{k}")

    def versions(self, condition: str) -> Iterator[bool]:
        """Yield True and then False, for two versions of the same code, between which `condition` (an i1) chooses. What
        they compute from outer values alone comes before both and moves out of loops as without the branch."""
        k, bodies = self.new_label(""), list[list[str]]()
        for chosen in (True, False):
            self.scopes.append(Scope(False))
            yield chosen
            bodies.append(self._closed())
        lines = self.scopes[-1].lines
        lines.append(f"br i1 {condition}, label %then{k}, label %else{k}")
        for name, body in zip(("then", "else"), bodies, strict=True):
            lines += [f"{name}{k}:", *body, f"br label %fi{k}"]
        lines.append(f"fi{k}:")

    @contextmanager
    def region(self) -> Generator[None]:
        """Open the body of a loop whose labels the caller emits; there may be no iteration."""
        self.scopes.append(Scope(False))
        yield
        body = self._closed()
        self.scopes[-1].lines += body

    @contextmanager
    def arm(self) -> Generator[None]:
        """Collect the code of one arm of a branch; the caller writes its labels and jumps."""
        self.scopes.append(Scope(False, branch=True))
        yield
        body = self._closed()
        self.scopes[-1].lines += body

    @contextmanager
    def discarded(self) -> Generator[None]:
        """Discard what is emitted while this lasts: the caller only wants to know what it would be."""
        outer, self.dry = self.dry, True
        self.scopes.append(Scope(True))
        yield
        self.scopes.pop()
        self.dry = outer

    def body(self) -> str:
        (scope,) = self.scopes
        return "\n  ".join([*self.allocas, *scope.lines])


def argument_type(text: str) -> str:
    """`ptr align 4 %p` → ptr; `<4 x float> splat (float 1.0)` → <4 x float>; `i1 false` → i1."""
    return text[: text.index(">") + 1] if text.startswith("<") else text.split(" ", 1)[0]
