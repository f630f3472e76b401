"""Checks on finished GPU IR that every access to shared memory is ordered after what it depends on.

    check_synchronization(module)        raises SynchronizationError, which names op, buffer and missing order

docs/synchronization.md states the model, its rules and what they cannot see. The checker knows instructions, not
passes: it shares no code with the passes that place barriers."""

from tessera.analysis.synchronization.check import Coverage, check_synchronization

__all__ = ["Coverage", "check_synchronization"]
