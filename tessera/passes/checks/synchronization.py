"""Checks that accesses to shared memory are ordered in finished GPU IR, and changes nothing
(docs/synchronization.md)."""

from __future__ import annotations

from tessera.analysis.synchronization import check_synchronization
from tessera.config import knobs
from tessera.ir import Module, Pass, pass_


@pass_("synchronized")
def synchronized(module: Module) -> None:
    """SynchronizationError where an access is not ordered after what it depends on. After all other passes."""
    check_synchronization(module)


def last_look() -> list[Pass]:
    """The check where it is asked for: TESSERA_VERIFY=1 or TESSERA_CHECK_SYNCHRONIZATION=1, which all tests set."""
    wanted = knobs.compilation.verify or knobs.compilation.check_synchronization
    return [synchronized] if wanted else []
