"""Decodes LLVM IR as the lowering writes it to a list of steps, with functions put in where they are called.

A step's values live in numbered slots; constants have slots of their own. A value that is used up before its threads
may pause needs no care for other threads that are elsewhere (`keep` False).
"""

# pyright: basic
# the text is our own: patterns match
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tessera.backends.nvidia.primitives import FAMILIES, NOTE, PRIMITIVES, Primitive
from tessera.backends.nvidia.simulator import instructions as make
from tessera.backends.nvidia.simulator.text import (
    Function,
    constant,
    functions_of,
    lines_of,
    split_args,
    strings_of,
    tables_of,
    typed,
)
from tessera.errors import SimulatedUnknown

PURE, EFFECT, PAUSE, BRANCH, RETURN = range(5)
# Primitives after which other warps may go on: where threads meet, wait, or tell each other something.
PAUSES = {
    "barrier", "cluster_barrier", "mbarrier_arrive", "mbarrier_arrive_in", "mbarrier_arrive_of_warp",
    "mbarrier_arrive_after_copies", "mbarrier_expect", "mbarrier_try", "mbarrier_wait", "wgmma_wait", "async_wait",
    "bulk_wait", "tensor_load", "tensor_store", "atomic",
}  # fmt: skip
LOADS = {"load_shared", "load_matrix"}
AGAIN = {"wgmma_wait"}  # pauses that may have to run once more


class Step:
    """One instruction. `run(env)`, or `run(machine, env)` for an effect, gives the value of slot `dest`."""

    __slots__ = ("awaits", "dest", "keep", "kind", "line", "name", "run", "targets", "uses")

    def __init__(self, kind: int, run: Any, dest: int, uses: list[int], line: int, name: str):
        self.kind, self.run, self.dest, self.uses, self.line = kind, run, dest, uses, line
        self.name, self.keep = name, True
        self.awaits: list[int] = []  # loads of shared memory whose results must be there for it
        self.targets: list[Any] = []  # of a branch: (step, [(slot of a phi, its source)])


class Program:
    """The kernel `name` of the module `ir` for `threads` threads (all CTAs of a cluster)."""

    def __init__(self, ir: str, name: str, threads: int) -> None:
        self.threads = threads
        self.functions = functions_of(ir)
        self.tables, self.strings = tables_of(ir), strings_of(ir)
        self.lines = lines_of(ir)
        self.rows = _rows(ir)
        self.steps: list[Step] = []
        self.initial: list[Any] = []  # values of all slots before anything runs
        self._constants: dict[tuple[str, str], int] = {}
        self._fixes: list[tuple[Step, list[tuple[Any, str, list[Any]]]]] = []
        self._starts: dict[Any, int] = {}
        self._instances = 0
        self.idle: set[int] = set()  # steps of instructions that may be put off
        kernel = self.functions[name]
        self.params = [(type, self.slot()) for type, _ in kernel.params]
        scope = {v: s for (_, v), (_, s) in zip(kernel.params, self.params)}
        self._function(kernel, scope, None)
        for step, targets in self._fixes:
            step.targets = [(self._starts[where], moves) for where, _, moves in targets]
        _settle(self.steps)
        self._await()

    def slot(self, value: object = None) -> int:
        self.initial.append(value)
        return len(self.initial) - 1

    def operand(self, type: str, text: str, scope: dict[str, int]) -> int:
        """The slot of a value or constant."""
        if text.startswith("%"):
            if text not in scope:
                scope[text] = self.slot()
            return scope[text]
        found = self._constants.get((type, text))
        if found is None:
            found = self._constants[type, text] = self.slot(constant(type, text, self.threads))
        return found

    # --- functions ----------------------------------------------------------------------------------------------
    def _function(self, f: Function, scope: dict[str, int], leave: object) -> None:
        """`leave`: (slot of the result or -1, mark where callers go on); None in the kernel."""
        self._instances += 1
        me = self._instances
        phis = {label: self._phis(lines, scope) for label, lines in f.blocks.items()}
        for label, lines in f.blocks.items():
            self._starts[me, label] = len(self.steps)
            for line, number in lines:
                if " = phi " in line:
                    continue
                if line.startswith(("br ", "ret", "unreachable")):
                    self._end(line, number, (me, label, phis), scope, leave)
                    break
                self._step(line, number, scope)

    def _phis(self, lines: list[tuple[str, int]], scope: dict[str, int]) -> list[Any]:
        found = []
        for line, _ in lines:
            if " = phi " not in line:
                break
            name, rest = line.split(" = phi ", 1)
            type = rest[: rest.index("[")].strip()
            type = "ptr" if type.startswith("ptr") else type
            sources = re.findall(r"\[ ([^,]+), %([\w.]+) \]", rest)
            slot = self.operand(type, name, scope)
            found.append((slot, {b: self.operand(type, v, scope) for v, b in sources}))
        return found

    def _end(
        self, line: str, number: int, where: Any, scope: dict[str, int], leave: object
    ) -> None:
        me, label, phis = where
        if not line.startswith("br"):
            self._leave(line, number, scope, leave)
            return
        targets = []
        for x in re.findall(r"label %([\w.]+)", line):
            targets.append(((me, x), x, [(slot, of[label]) for slot, of in phis[x]]))
        uses = [source for _, _, moves in targets for _, source in moves]
        condition = -1
        if len(targets) == 2:
            condition = self.operand("i1", re.match(r"br i1 ([^,]+),", line)[1], scope)
            uses.append(condition)
        step = Step(BRANCH, None, condition, uses, number, "br")
        self.steps.append(step)
        self._fixes.append((step, targets))

    def _leave(self, line: str, number: int, scope: dict[str, int], leave: Any) -> None:
        if leave is None or line == "unreachable":
            self.steps.append(Step(RETURN, None, -1, [], number, "ret"))
            return
        result, mark = leave
        moves = []
        if result >= 0:
            moves = [(result, self.operand(*typed(line[4:]), scope))]
        step = Step(BRANCH, None, -1, [s for _, s in moves], number, "ret")
        self.steps.append(step)
        self._fixes.append((step, [(mark, "", moves)]))

    def _call(self, f: Function, args: list[int], result: int) -> None:
        self._instances += 1
        mark = (self._instances, "after")
        self._function(f, {v: s for (_, v), s in zip(f.params, args)}, (result, mark))
        self._starts[mark] = len(self.steps)

    def _await(self) -> None:
        """Find the loads of shared memory that each step waits for: those whose results it takes, perhaps through
        instructions without effects. What may be put off waits for nothing."""
        made = {s.dest: i for i, s in enumerate(self.steps) if s.dest >= 0 and s.kind < BRANCH}
        loads: dict[int, frozenset[int]] = {}

        def behind(slot: int) -> frozenset[int]:
            if slot not in loads:
                i = made.get(slot, -1)
                if i < 0:
                    found = frozenset()
                elif self.steps[i].name in LOADS:
                    found = frozenset([i])
                elif self.steps[i].kind == PURE or i in self.idle:
                    found = frozenset().union(*[behind(s) for s in self.steps[i].uses])
                else:
                    found = frozenset()
                loads[slot] = found
            return loads[slot]

        for i, step in enumerate(self.steps):
            for slot in step.uses:  # in order, so that nothing is deep
                behind(slot)
            if step.kind != PURE and i not in self.idle:
                uses = [step.dest] if step.kind == BRANCH and step.dest >= 0 else step.uses
                uses = [] if step.kind == BRANCH and step.dest < 0 else uses
                step.awaits = sorted(frozenset().union(*[behind(s) for s in uses]))

    # --- instructions -------------------------------------------------------------------------------------------
    def _step(self, line: str, number: int, scope: dict[str, int]) -> None:
        dest = -1
        if line.startswith("%"):
            name, line = line.split(" = ", 1)
            dest = self.operand("", name, scope)
        opcode, _, rest = line.partition(" ")
        if opcode == "call":
            self._calls(rest, dest, number, scope)
            return
        maker: Callable[..., Any] = make.MAKERS[opcode]
        uses: list[int] = []

        def slot(type: str, text: str) -> int:
            uses.append(self.operand(type, text, scope))
            return uses[-1]

        run, effect = maker(self, opcode, rest, slot)
        self.steps.append(Step(EFFECT if effect else PURE, run, dest, uses, number, opcode))

    def _calls(self, rest: str, dest: int, number: int, scope: dict[str, int]) -> None:
        rest = re.sub(r" #\d+$", "", rest)
        found = re.match(r"(.*?) asm (?:sideeffect )?\"(.*?)\", \"(.*?)\"\((.*)\)$", rest)
        if found:
            key, result = _key(found[2], found[3]), found[1]
            name, args = "", split_args(found[4])
        else:
            found = re.match(r"(.*?) @([\w.]+)\((.*)\)$", rest)
            result, name, args = found[1], found[2], split_args(found[3])
            key = (name, "")
        pairs = [typed(a) for a in args]
        if name in ("vprintf", "__assertfail"):
            self.steps.append(self._message(name, pairs, dest, number, scope))
            return
        slots = [self.operand(t, a, scope) for t, a in pairs]
        if name in self.functions:
            self._call(self.functions[name], slots, dest)
            return
        row = self.rows.get(key)
        if row is not None:
            kind = (PAUSE if row.name in PAUSES else EFFECT) if row.uses_machine else PURE
            run = make.row(row, slots, result.startswith("{"))
            self.steps.append(Step(kind, run, dest, slots, number, row.name))
            if row.pure:
                self.idle.add(len(self.steps) - 1)
            return
        run = make.intrinsic(result, name, slots)
        if run is None:
            raise SimulatedUnknown(f"the simulator does not know the meaning of `{name or key[0]}`")
        self.steps.append(Step(PURE, run, dest, slots, number, name))

    def _message(
        self, name: str, pairs: list[tuple[str, str]], dest: int, number: int, scope: dict[str, int]
    ) -> Step:
        """printf or assert."""
        uses = [self.operand(t, a, scope) for t, a in pairs]
        a, b = uses[:2]
        if name == "vprintf":
            run = lambda m, env: m.print(self.strings[env[a]], env[b])  # noqa: E731
        else:
            run = lambda m, env: m.fail(self.strings[env[a]], self.strings[env[b]], env[uses[2]])  # noqa: E731
        return Step(EFFECT, run, dest, uses, number, name)


@lru_cache(maxsize=32)
def program_of(ir: str, name: str, threads: int) -> Program:
    return Program(ir, name, threads)


def _key(text: str, constraints: str) -> tuple[str, str]:
    return text, re.sub(r",?~\{memory\}", "", constraints)


def _rows(ir: str) -> dict[tuple[str, str], Primitive]:
    """The table's rows, with those of families that the module names, by text and constraints."""
    rows = list(PRIMITIVES.values())
    for line in ir.splitlines():
        if line.startswith(NOTE):
            call: Any = ast.parse(line[len(NOTE) :], mode="eval").body
            args = [ast.literal_eval(x) for x in call.args]
            options = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
            rows.append(FAMILIES[call.func.id](*args, **options))
    return {_key(r.text, r.constraints): r for r in rows}


def _settle(steps: list[Step]) -> None:
    """Find the values that live within one piece of code in which no thread pauses."""
    piece, made, pieces = 0, {}, []
    for step in steps:
        piece += step.name in AGAIN
        pieces.append(piece)
        if step.kind >= PAUSE:
            piece += 1
        if step.dest >= 0 and step.kind < BRANCH:
            made[step.dest] = -1 if step.kind == PAUSE else pieces[-1]
    starts = {at for step in steps for at, _ in step.targets}
    far = set()
    for step, here in zip(steps, pieces):
        for s in step.uses:
            if made.get(s) != here:
                far.add(s)
        for _, moves in step.targets:
            far.update(slot for slot, _ in moves)
    # A piece into which a branch leads in the middle is not run in one go.
    joined = {
        pieces[at] for at in starts if at < len(steps) and at and pieces[at - 1] == pieces[at]
    }
    for step, here in zip(steps, pieces):
        if step.kind < BRANCH:
            step.keep = step.dest in far or here in joined
