"""Checks that accesses to shared memory are ordered in finished GPU IR, without changing it
(docs/synchronization.md)."""

from __future__ import annotations

from tessera.analysis.synchronization import check_synchronization
from tessera.config import knobs
from tessera.ir import Module, Pass, pass_


@pass_("synchronized")
def synchronized(module: Module) -> None:
    """Check that each access to shared memory is ordered after those that it depends on.

    Takes: finished GPU IR: `barriers` was the last pass.
    Gives: the IR as it is.
    Needs: any GPU; pipelines run it under TESSERA_VERIFY=1 or TESSERA_CHECK_SYNCHRONIZATION=1.
    Raises: SynchronizationError: an access may run before the end of one that it conflicts with.
    Example: `barrier_missing` of tests/filecheck/synchronized.gir
        %a = local_alloc %x; %y = local_load %a → SynchronizationError
    Compare: `compute-sanitizer --tool racecheck`, which watches one run; PTX ISA, "Memory Consistency Model".
    """
    check_synchronization(module)


def last_look() -> list[Pass]:
    """Return the check if TESSERA_VERIFY=1 or TESSERA_CHECK_SYNCHRONIZATION=1 (as in all tests) asks for it."""
    wanted = knobs.compilation.verify or knobs.compilation.check_synchronization
    return [synchronized] if wanted else []
