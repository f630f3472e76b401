"""Lists the passes that every target runs first, on tile IR as the front end emits it."""

from tessera.ir import Pass
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.cse import cse
from tessera.passes.neutral.known_comparisons import known_comparisons
from tessera.passes.neutral.licm import licm
from tessera.passes.neutral.narrow_division import narrow_division
from tessera.passes.neutral.while_to_for import while_to_for

CLEAN_UP: list[Pass] = [canonicalize, cse]  # remove what became unused or equal


def neutral_pipeline() -> list[Pass]:
    """Return the passes that simplify IR without knowing the target."""
    return [
        canonicalize,
        cse,  # after folding, which makes differently written ops equal
        # Before any layout exists, so that no conversion is dragged into a loop, and while loops are the author's.
        licm.bind(tell=True),
        while_to_for,  # whose bounds LICM put in front of them
        known_comparisons,  # whose loops have an induction variable now
        narrow_division,  # by the same intervals
        canonicalize,  # values that LICM made invariant, counts that only the loop reads
        cse,  # ops that were in a loop and again outside it
    ]
