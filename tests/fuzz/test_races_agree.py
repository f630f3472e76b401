"""Random kernels whose programs share an array race, or not, as an account of their accesses in plain Python says: the
same on the interpreter and in compiled checked builds. A failure prints the source, which can be pasted and run."""

# pyright: basic
from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tessera.errors import ProgramRace, UninitialisedRead
from tessera.runtime.driver import driver
from tessera.testing import uninitialised
from tests.errors.kernel_source import load_kernel

N, SIZE, PROGRAMS = 8, 48, 5
_FILES = tempfile.TemporaryDirectory(prefix="tessera-races-")
_COUNT = itertools.count()
HEAD = "import tessera\nimport tessera.language as tl\n\n\n@tessera.jit\n"


class Plan:
    """A kernel as statements (array, what, place, mask, times): what is stored is None for a load; places and masks are
    numbers of a linear form over program, element and iteration."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        r = self.random
        self.statements = [self._statement() for _ in range(r.randint(1, 4))]
        self.declared = r.random() < 0.3
        self.views = r.random() < 0.3  # y is x, further on

    def _statement(self):
        r = self.random
        array = r.choice("xxy")
        what = r.choice([None, None, "7", "pid", "v", "i", "step"])
        apart = r.random() < 0.5  # a program keeps to its elements, nearly
        place = (
            (N, 1, 0, 0)
            if apart
            else (r.choice([0, 1, 4, 8]), r.choice([0, 1, 2]), r.randint(0, 3), r.randint(0, 9))
        )
        mask = None if r.random() < 0.5 else (r.randint(-2, 2), 1, 0, r.randint(2, 9))
        return array, what, place, mask, r.choice([1, 1, 3])

    def source(self) -> str:
        lines = ["pid = tl.program_id(0)", "i = tl.arange(0, N)", "v = i * 0"]
        for array, what, (a, b, c, d), mask, times in self.statements:
            lines.append(f"for step in range(n * {times}):")
            lines.append(f"    at = (pid * {a} + i * {b} + step * {c} + {d}) % {SIZE}")
            given = "None" if mask is None else f"pid * {mask[0]} + i < {mask[3]}"
            if what is None:
                lines.append(f"    v += tl.load({array} + at, mask={given})")
            else:
                lines.append(f"    tl.store({array} + at, {what} + i * 0, mask={given})")
        return "\n    ".join(["def k(x, y, n, N: tl.constexpr):", *lines])


class Account:
    """Who has accessed which cell of memory, program by program. `unset`: the cells that nothing has stored."""

    def __init__(self, plan: Plan, memory: dict[str, np.ndarray], unset: set):
        self.plan, self.memory, self.unset = plan, memory, unset
        self.read, self.stored, self.changed = {}, {}, {}

    def report(self) -> str:
        """The report, without its location, that the accesses give; "" if there is none."""
        for pid in range(PROGRAMS):
            self.pid, self.values = pid, np.zeros(N, np.int64)
            for array, what, (a, b, c, d), mask, times in self.plan.statements:
                for step in range(times):
                    self.array = array
                    self.at = [(pid * a + i * b + step * c + d) % SIZE for i in range(N)]
                    on = [i for i in range(N) if mask is None or pid * mask[0] + i < mask[3]]
                    found = self.load(on) if what is None else self.store(on, what, step)
                    if found:
                        return found
        return ""

    def cell(self, i: int) -> tuple[str, int]:
        """The memory behind element `i` of the access."""
        if self.array == "y" and self.plan.views:
            return "x", self.at[i] + 8
        return self.array, self.at[i]

    def conflict(self, table: dict, does: str, did: str, some: list[int]) -> str:
        for i in some:
            other = table.get(self.cell(i), self.pid)
            if other != self.pid:
                here = f"program ({self.pid}, 0, 0) {does} element {self.at[i]} of `{self.array}`"
                return f"{here}, which program ({other}, 0, 0) {did}"
        return ""

    def load(self, on: list[int]) -> str:
        for i in on:
            if self.cell(i) in self.unset:
                here = f"program ({self.pid}, 0, 0) reads element {self.at[i]} of `{self.array}`"
                return f"{here}, which nothing has stored"
        found = self.conflict(self.changed, "reads", "has stored", on)
        for i in on:
            self.read.setdefault(self.cell(i), self.pid)
            self.values[i] += self.memory[self.cell(i)[0]][self.cell(i)[1]]
        return found

    def store(self, on: list[int], what: str, step: int) -> str:
        numbers = {"7": [7] * N, "pid": [self.pid] * N, "i": range(N), "step": [step] * N}
        value = numbers.get(what, self.values)
        differ = [i for i in on if self.memory[self.cell(i)[0]][self.cell(i)[1]] != value[i]]
        found = self.conflict(self.read, "stores", "has read", differ)
        found = found or self.conflict(self.stored, "stores", "has stored", differ)
        known = {self.cell(i) for i in on} & (self.unset | set(self.changed))
        for cell in known | {self.cell(i) for i in differ}:
            self.changed[cell] = self.pid
        for i in on:
            name, at = self.cell(i)
            self.stored[name, at] = self.pid
            self.memory[name][at] = value[i]
        self.unset -= {self.cell(i) for i in on}
        return found


def arrays(plan: Plan):
    x = np.arange(SIZE + 8, dtype=np.int32) % 9
    if plan.declared:
        uninitialised(x)
    y = x[8:] if plan.views else np.arange(SIZE, dtype=np.int32) % 5
    return x, y


def report(kernel, plan: Plan, target: str) -> str:
    x, y = arrays(plan)
    driver.set_active(target)
    try:
        kernel[(PROGRAMS,)](x, y, 1, N, debug="check")
    except (ProgramRace, UninitialisedRead) as error:
        return str(error)
    finally:
        driver.reset_active()
    return f"{x.tolist()} {y.tolist()}"


def check(seed: int) -> bool:
    """Compare the reports of a kernel; return whether there was one."""
    plan = Plan(seed)
    folder, source = Path(_FILES.name) / str(next(_COUNT)), plan.source()
    folder.mkdir()
    kernel = load_kernel(folder, source, HEAD)
    x, y = arrays(plan)
    unset = {("x", at) for at in range(SIZE + 8)} if plan.declared else set()
    want = Account(plan, {"x": x, "y": y}, unset).report()
    told = report(kernel, plan, "interpreter")
    assert report(kernel, plan, "cpu") == told, source
    if want:
        assert f": {want}\n" in told, source
    else:
        memory = [x.tolist(), y.tolist()]
        assert told == f"{memory[0]} {memory[1]}", source
    return bool(want)


@given(st.integers(0, 2**31))
@example(3)
@settings(
    max_examples=20, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
def test_races_are_reported_alike(seed):
    check(seed)


@pytest.mark.parametrize("seeds", [range(12)])
def test_there_are_both(seeds):
    """Some of the kernels race, and some do not."""
    found = [check(seed) for seed in seeds]
    assert {True, False} <= set(found)
