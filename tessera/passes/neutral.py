"""The passes that every target runs first, on tile IR as the front end emits it."""

from tessera.ir import Pass
from tessera.passes.canonicalize import canonicalize
from tessera.passes.counted import count_loops
from tessera.passes.cse import cse
from tessera.passes.licm import licm


def neutral_pipeline() -> list[Pass]:
    """Simplify without knowing the target."""
    return [
        canonicalize,
        cse,  # after folding, which makes equal what was written differently
        licm,  # before any layout exists, so that no conversion is dragged into a loop
        count_loops,  # whose bounds LICM put in front of them
        canonicalize,  # loop-carried values that LICM made invariant, counts that are read inside only
        cse,  # what stood in a loop and again outside it
    ]
