"""Decodes LLVM IR as the lowering writes it to a list of steps, with called functions inlined.

A step's values live in numbered slots; constants have slots of their own. A value whose last use comes before its
threads may pause need not be merged with values of diverged threads (`keep` False).
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from tessera.backends.nvidia.primitives import FAMILIES, NOTE, PRIMITIVES, Primitive
from tessera.backends.nvidia.primitives.row import Lanes, Machine
from tessera.backends.nvidia.simulator import instructions as make
from tessera.backends.nvidia.simulator.fusion import Fusion
from tessera.backends.nvidia.simulator.text import (
    Function,
    Value,
    constant,
    functions_of,
    lines_of,
    split_args,
    strings_of,
    tables_of,
    typed,
)
from tessera.errors import SimulatedUnknown

Mark = tuple[int, str]  # a call, and the block of the function that it inlined
Moves = list[tuple[int, int]]  # of a branch: (slot of a phi, its source)
Phis = dict[str, list[tuple[int, dict[str, int]]]]  # by block: slots, and their sources by block
Leave = (
    tuple[int, Mark] | None
)  # slot of the result or -1, and where the caller goes on; None in the kernel

PURE, EFFECT, PAUSE, BRANCH, RETURN = range(5)
# Primitives after which other warps may go on: those by which threads synchronise, wait or signal.
PAUSES = {
    "barrier", "cluster_barrier", "mbarrier_arrive", "mbarrier_arrive_in", "mbarrier_arrive_of_warp",
    "mbarrier_arrive_after_copies", "mbarrier_expect", "mbarrier_try", "mbarrier_wait", "wgmma_wait", "async_wait",
    "bulk_wait", "tensor_load", "tensor_store", "atomic",
}  # fmt: skip
LOADS = {"load_shared", "load_matrix"}
AGAIN = {"wgmma_wait"}  # pauses that may have to run again


class Step:
    """One instruction. `run(env)`, or `run(machine, env)` for an effect, gives the value of slot `dest`."""

    __slots__ = ("awaits", "dest", "keep", "kind", "line", "name", "run", "targets", "uses")

    def __init__(
        self, kind: int, run: make.Run, dest: int, uses: list[int], line: int, name: str
    ) -> None:
        self.kind, self.run, self.dest, self.uses, self.line = kind, run, dest, uses, line
        self.name, self.keep = name, True
        self.awaits: list[int] = []  # loads of shared memory whose results it needs
        self.targets: list[tuple[int, Moves]] = []  # of a branch


def _nothing(env: make.Env) -> None:
    """The function of branches and returns, which compute nothing."""


class Program:
    """The kernel `name` of the module `ir` for `threads` threads (all CTAs of a cluster)."""

    def __init__(self, ir: str, name: str, threads: int) -> None:
        self.threads = threads
        self.functions = functions_of(ir)
        self.tables, self.strings = tables_of(ir), strings_of(ir)
        self.lines = lines_of(ir)
        self.rows = _rows(ir)
        self.may_wait = any(
            r.name == "atomic" or "volatile.global" in r.text for r in self.rows.values()
        )
        self.steps: list[Step] = []
        self.initial: list[Value] = []  # values of all slots before the first step
        self._constants: dict[tuple[str, str], int] = {}
        self._fixes: list[tuple[Step, list[tuple[Mark, Moves]]]] = []
        self._starts: dict[Mark, int] = {}
        self._instances = 0
        self.idle: set[int] = set()  # steps of instructions that may be delayed
        self._fusion = Fusion(self.initial.__getitem__)
        kernel = self.functions[name]
        self.params = [(type, self.slot()) for type, _ in kernel.params]
        scope = {v: s for (_, v), (_, s) in zip(kernel.params, self.params)}
        self._function(kernel, scope, None)
        for step, targets in self._fixes:
            step.targets = [(self._starts[where], moves) for where, moves in targets]
        _settle(self.steps)
        self._await()

    def slot(self, value: Value = None) -> int:
        self.initial.append(value)
        return len(self.initial) - 1

    def operand(self, type: str, text: str, scope: dict[str, int]) -> int:
        """Return the slot of a value or constant."""
        if text.startswith("%"):
            if text not in scope:
                scope[text] = self.slot()
            return scope[text]
        found = self._constants.get((type, text))
        if found is None:
            found = self._constants[type, text] = self.slot(constant(type, text, self.threads))
        return found

    # --- functions ----------------------------------------------------------------------------------------------
    def _function(self, f: Function, scope: dict[str, int], leave: Leave) -> None:
        self._instances += 1
        me = self._instances
        phis: Phis = {label: self._phis(lines, scope) for label, lines in f.blocks.items()}
        for label, lines in f.blocks.items():
            self._starts[me, label] = len(self.steps)
            for line, number in lines:
                if " = phi " in line:
                    continue
                if line.startswith(("br ", "ret", "unreachable")):
                    self._end(line, number, (me, label, phis), scope, leave)
                    break
                self._step(line, number, scope)

    def _phis(
        self, lines: list[tuple[str, int]], scope: dict[str, int]
    ) -> list[tuple[int, dict[str, int]]]:
        found: list[tuple[int, dict[str, int]]] = []
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
        self, line: str, number: int, where: tuple[int, str, Phis], scope: dict[str, int], leave: Leave
    ) -> None:  # fmt: skip
        me, label, phis = where
        if not line.startswith("br"):
            self._leave(line, number, scope, leave)
            return
        targets: list[tuple[Mark, Moves]] = []
        for x in re.findall(r"label %([\w.]+)", line):
            targets.append(((me, x), [(slot, of[label]) for slot, of in phis[x]]))
        uses = [source for _, moves in targets for _, source in moves]
        condition = -1
        if len(targets) == 2:
            condition = self.operand("i1", line.removeprefix("br i1 ").partition(",")[0], scope)
            uses.append(condition)
        step = Step(BRANCH, _nothing, condition, uses, number, "br")
        self.steps.append(step)
        self._fixes.append((step, targets))

    def _leave(self, line: str, number: int, scope: dict[str, int], leave: Leave) -> None:
        if leave is None or line == "unreachable":
            self.steps.append(Step(RETURN, _nothing, -1, [], number, "ret"))
            return
        result, mark = leave
        moves: Moves = []
        if result >= 0:
            moves = [(result, self.operand(*typed(line[4:]), scope))]
        step = Step(BRANCH, _nothing, -1, [s for _, s in moves], number, "ret")
        self.steps.append(step)
        self._fixes.append((step, [(mark, moves)]))

    def _call(self, f: Function, args: list[int], result: int) -> None:
        self._instances += 1
        mark = (self._instances, "after")
        self._function(f, {v: s for (_, v), s in zip(f.params, args)}, (result, mark))
        self._starts[mark] = len(self.steps)

    def _await(self) -> None:
        """Find the loads of shared memory that each step waits for: those whose results it takes, perhaps through
        instructions without effects. Instructions that may be delayed wait for nothing."""
        made = {s.dest: i for i, s in enumerate(self.steps) if s.dest >= 0 and s.kind < BRANCH}
        loads: dict[int, frozenset[int]] = {}

        def behind(slot: int) -> frozenset[int]:
            if slot not in loads:
                i = made.get(slot, -1)
                found: frozenset[int] = frozenset()
                if i >= 0 and self.steps[i].name in LOADS:
                    found = frozenset([i])
                elif i >= 0 and (self.steps[i].kind == PURE or i in self.idle):
                    found = found.union(*[behind(s) for s in self.steps[i].uses])
                loads[slot] = found
            return loads[slot]

        for i, step in enumerate(self.steps):
            for slot in step.uses:  # in order, so that the recursion is shallow
                behind(slot)
            if step.kind != PURE and i not in self.idle:
                uses = [step.dest] if step.kind == BRANCH and step.dest >= 0 else step.uses
                uses = [] if step.kind == BRANCH and step.dest < 0 else uses
                step.awaits = sorted({load for s in uses for load in behind(s)})

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
        uses: list[int] = []

        def slot(type: str, text: str) -> int:
            uses.append(self.operand(type, text, scope))
            return uses[-1]

        run, effect = make.MAKERS[opcode](self.tables, opcode, rest, slot)
        run, uses = self._fusion.step(opcode, rest, uses, dest) or (run, uses)
        self.steps.append(Step(EFFECT if effect else PURE, run, dest, uses, number, opcode))

    def _calls(self, rest: str, dest: int, number: int, scope: dict[str, int]) -> None:
        rest = re.sub(r" #\d+$", "", rest)
        result, name, key, args = _callee(rest)
        pairs = [typed(a) for a in split_args(args)]
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
        """Return a step for printf or assert."""
        uses = [self.operand(t, a, scope) for t, a in pairs]
        a, b = uses[:2]

        def write(m: Machine, env: make.Env) -> Lanes:
            return m.print(self.strings[env[a]], env[b])

        def fail(m: Machine, env: make.Env) -> None:
            m.fail(self.strings[env[a]], self.strings[env[b]], env[uses[2]])

        return Step(EFFECT, write if name == "vprintf" else fail, dest, uses, number, name)


@lru_cache(maxsize=32)
def program_of(ir: str, name: str, threads: int) -> Program:
    return Program(ir, name, threads)


def _callee(call: str) -> tuple[str, str, tuple[str, str], str]:
    """Return a call's result type, the function's name ("": inline PTX), the key of its row, and the operands."""
    found = re.match(r"(.*?) asm (?:sideeffect )?\"(.*?)\", \"(.*?)\"\((.*)\)$", call)
    if found is not None:
        return found[1], "", _key(found[2], found[3]), found[4]
    found = re.match(r"(.*?) @([\w.]+)\((.*)\)$", call)
    assert found is not None, call
    return found[1], found[2], (found[2], ""), found[3]


def _key(text: str, constraints: str) -> tuple[str, str]:
    return text, re.sub(r",?~\{memory\}", "", constraints)


def _rows(ir: str) -> dict[tuple[str, str], Primitive]:
    """Return the rows of the table, and those of families that the module names, by text and constraints."""
    rows = list(PRIMITIVES.values())
    for line in ir.splitlines():
        if line.startswith(NOTE):
            call = ast.parse(line[len(NOTE) :], mode="eval").body
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), line
            args = [ast.literal_eval(x) for x in call.args]
            options = {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
            rows.append(FAMILIES[call.func.id](*args, **options))
    return {_key(r.text, r.constraints): r for r in rows}


def _settle(steps: list[Step]) -> None:
    """Find the values that live within one piece of code in which no thread pauses."""
    piece, pieces = 0, list[int]()
    made: dict[int, int] = {}
    for step in steps:
        piece += step.name in AGAIN
        pieces.append(piece)
        if step.kind >= PAUSE:
            piece += 1
        if step.dest >= 0 and step.kind < BRANCH:
            made[step.dest] = -1 if step.kind == PAUSE else pieces[-1]
    starts = {at for step in steps for at, _ in step.targets}
    far: set[int] = set()
    for step, here in zip(steps, pieces):
        for s in step.uses:
            if made.get(s) != here:
                far.add(s)
        for _, moves in step.targets:
            far.update(slot for slot, _ in moves)
    # A piece that a branch enters in the middle is not run in one go.
    joined = {
        pieces[at] for at in starts if at < len(steps) and at and pieces[at - 1] == pieces[at]
    }
    for step, here in zip(steps, pieces):
        if step.kind < BRANCH:
            step.keep = step.dest in far or here in joined
