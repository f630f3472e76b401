"""Lists the passes that every target runs first, on tile IR as the front end emits it."""

from tessera.ir import Pass
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.cse import cse
from tessera.passes.neutral.licm import licm
from tessera.passes.neutral.while_to_for import while_to_for

CLEAN_UP: list[Pass] = [canonicalize, cse]  # what became unused or equal


def neutral_pipeline() -> list[Pass]:
    """Simplify without knowing the target."""
    return [
        canonicalize,
        cse,  # after folding, which makes equal what was written differently
        licm,  # before any layout exists, so that no conversion is dragged into a loop
        while_to_for,  # whose bounds LICM put in front of them
        canonicalize,  # loop-carried values that LICM made invariant, counts that are read inside only
        cse,  # what stood in a loop and again outside it
    ]
