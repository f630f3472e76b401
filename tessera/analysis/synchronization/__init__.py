"""Checks on finished GPU IR that every access to shared memory is ordered after what it depends on.

    check_synchronization(module)        raises SynchronizationError, which names op, buffer and missing order

The model, the rules and what they cannot see: docs/synchronization.md. It knows instructions, not passes: nothing
of the code that places barriers is used."""

from tessera.analysis.synchronization.check import Coverage, check_synchronization

__all__ = ["Coverage", "check_synchronization"]
