"""Makes `os.fork` safe while other threads compile: it waits until no thread is in a section that a child could not
finish.

A child has only the thread that forked. What the others held is held for ever: LLVM's lock, the locks of modules that
were being imported, those of this package. So work of that kind is done inside of `with undivided():`, and a fork waits
for its end, for some seconds at most: a thread inside may itself wait for the one that forks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from threading import get_ident

PATIENCE = 10.0  # seconds that a fork waits


class _Gate:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside: dict[int, int] = {}  # thread → how often it has entered
        self.forking: int | None = None  # the thread that is about to fork

    def free_for(self, thread: int) -> bool:
        """Whether a thread may enter: one that is inside already may always."""
        return self.forking in (None, thread) or thread in self.inside

    def enter(self) -> None:
        me = get_ident()
        with self.changed:
            self.changed.wait_for(lambda: self.free_for(me))
            self.inside[me] = self.inside.get(me, 0) + 1

    def leave(self) -> None:
        me = get_ident()
        with self.changed:
            self.inside[me] -= 1
            if not self.inside[me]:
                del self.inside[me]
                self.changed.notify_all()

    def close(self) -> None:
        me = get_ident()
        with self.changed:
            self.changed.wait_for(lambda: self.forking is None, PATIENCE)
            self.forking = me
            self.changed.wait_for(lambda: not self.inside.keys() - {me}, PATIENCE)

    def open(self) -> None:
        with self.changed:
            self.forking = None
            self.changed.notify_all()


_gate = _Gate()


@contextmanager
def undivided() -> Generator[None]:
    """No fork by another thread happens inside. May be nested."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        if gate is _gate:  # else this is a forked child, which began anew
            gate.leave()


def _before() -> None:
    _gate.close()


def _in_parent() -> None:
    _gate.open()


def _in_child() -> None:
    global _gate
    _gate = _Gate()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
