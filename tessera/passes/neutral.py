"""The passes that every target runs first, on tile IR as the front end emits it."""

from tessera.ir import Pass
from tessera.passes.canonicalize import canonicalize
from tessera.passes.cse import cse
from tessera.passes.licm import licm


def neutral_pipeline() -> list[Pass]:
    """Simplify without knowing the target."""
    return [
        canonicalize,
        cse,  # after folding, which makes equal what was written differently
        licm,  # before any layout exists, so that no conversion is dragged into a loop
        canonicalize,  # loop-carried values that LICM made invariant
        cse,  # what stood in a loop and again outside it
    ]
