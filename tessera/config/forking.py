"""Makes `os.fork` safe while other threads compile: it waits until no thread is in a section that a child could not
finish.

A child has only the thread that forked. Locks held by other threads stay locked in it: LLVM's lock, those of modules
being imported, those of this package. Such work is therefore done inside `with undivided():`, and a fork waits
for its end, but only for some seconds: a thread inside may itself wait for the one that forks. Locks that finalisers
take, which run anywhere, are in `locks`: the fork holds them itself, and they are free in the child.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import get_ident

PATIENCE = 10.0  # seconds that a fork waits


class _Gate:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside: dict[int, int] = {}  # thread → how often it has entered
        self.forking: int | None = None  # the thread that is about to fork

    def free_for(self, thread: int) -> bool:
        """Whether a thread may enter; one that is already inside always may."""
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
locks: list[AbstractContextManager[object]] = []
_held = ExitStack()  # those of a fork that is under way


@contextmanager
def undivided() -> Generator[None]:
    """Prevent forks by other threads inside. May be nested."""
    gate = _gate
    gate.enter()
    try:
        yield
    finally:
        if gate is _gate:  # otherwise this is a forked child with a new gate
            gate.leave()


def _before() -> None:
    _gate.close()
    for lock in locks:
        _held.enter_context(lock)


def _in_parent() -> None:
    _held.close()
    _gate.open()


def _in_child() -> None:
    global _gate
    _held.close()
    _gate = _Gate()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
