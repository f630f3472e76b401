"""Runs programs one after another, and those that wait for others in turns: one at a time, each in a thread."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Semaphore, Thread

from tessera.interp.machine import Machine

LOOKS = 16  # iterations of a `while` loop after which a program lets others run
Program = tuple[int, int, int]


class Turns:
    """The programs of a launch that have not begun, and those that wait for their turn."""

    def __init__(
        self, programs: Iterable[Program], start: Callable[[Machine, Program], None]
    ) -> None:
        self.programs, self.start = iter(programs), start
        self.waiting: deque[Semaphore] = deque()
        self.failed: BaseException | None = None

    def run(self, machine: Machine) -> None:
        """Run all programs. If one fails, the others end when their turn comes."""
        machine.turns = self
        try:
            for program in self.programs:
                self.start(machine, program)
            while self.waiting:
                self.give(machine)
        except BaseException as error:
            self.failed = error
            while self.waiting:
                self.waiting.popleft().release()
            raise

    def give(self, machine: Machine) -> None:
        """Let a program begin or, if all have begun, the one go on that has waited longest."""
        if self.failed is not None:
            raise self.failed
        turn = Semaphore(0)
        self.waiting.append(turn)
        program = next(self.programs, None)
        if program is None:
            self.waiting.popleft().release()
        else:
            run = contextvars.copy_context().run
            Thread(target=run, args=[self._begin, replace(machine), program], daemon=True).start()
        turn.acquire()
        if self.failed is not None:
            raise self.failed

    def _begin(self, machine: Machine, program: Program) -> None:
        try:
            self.start(machine, program)
            for program in self.programs:
                self.start(machine, program)
        except BaseException as error:
            self.failed = error
        if self.waiting:
            self.waiting.popleft().release()
