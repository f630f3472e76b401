"""Changes the schedules that the planners wrote, as one written by hand may differ: the expander has to take each one
that the verifier takes (`--device simt/replanned`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tessera import ops
from tessera.errors import IRError
from tessera.ir import Effect, Module, Op
from tessera.ir.verify import verify
from tessera.ops.schedule import positions_of, set_positions, stage_of
from tessera.passes.gpu_loops.expand import expand_loops

LAST = 4  # position that an op is moved to, at most


@contextmanager
def replanned(seed: int) -> Iterator[None]:
    """Compile with other schedules, which follow from `seed` alone."""
    expand = expand_loops.fn

    def change_and_expand(module: Module) -> None:
        replan(module, Random(seed))
        expand(module)

    object.__setattr__(expand_loops, "fn", change_and_expand)
    try:
        yield
    finally:
        object.__setattr__(expand_loops, "fn", expand)


def replan(module: Module, random: Random) -> list[str]:
    """Change the schedule of each loop in some of these ways, but for what the verifier refuses; gives their names."""
    done: list[str] = []
    loops = [op for op in module.walk() if isinstance(op, ops.ForOp)]
    for loop in loops:
        for change in (_buffers, _ahead, _signal, _release, _positions):
            before = [(op, dict(op.attrs)) for op in (loop, *loop.body)]
            if random.random() < 0.5 and change(loop, random):
                try:
                    verify(module)
                    done.append(change.__name__[1:])
                except IRError:
                    for op, attrs in before:
                        op.attrs = attrs
    return done


def _copies(loop: ops.ForOp) -> list[Op]:
    return [op for op in loop.body if isinstance(op, ops.LocalAllocOp) and "signal" in op.attrs]


def _buffers(loop: ops.ForOp, random: Random) -> bool:
    """More or fewer buffers for all copies of a loop that nobody else uses again."""
    more, found = random.choice((-1, 1, 2)), _copies(loop)
    for op in found:
        op.attrs["slots"] += more
    return bool(found)


def _ahead(loop: ops.ForOp, random: Random) -> bool:
    """Copies run one iteration less ahead."""
    del random
    copied = {x for op in _copies(loop) for x in (op, op.operands[0].op)}
    if (loop.main_stage or 0) < 2 or not copied:
        return False
    for op in loop.body:
        if "stage" in op.attrs and op not in copied:
            op.attrs["stage"] -= 1
    loop.main_stage = (loop.main_stage or 0) - 1
    return True


def _signal(loop: ops.ForOp, random: Random) -> bool:
    """Copies of all threads that readers learn of in the other way."""
    del random
    found = [op for op in _copies(loop) if op.attrs["signal"] in ("cp.async", "mbarrier")]
    for op in found:
        if "role" not in op.attrs:
            op.attrs["signal"] = "cp.async" if op.attrs["signal"] == "mbarrier" else "mbarrier"
    return bool(found)


def _release(loop: ops.ForOp, random: Random) -> bool:
    """Each warp releases what warpgroups might."""
    del random
    found = [op for op in loop.body if op.attrs.get("release") == "warpgroup"]
    for op in found:
        op.attrs["release"] = "warp"
    return bool(found)


def _positions(loop: ops.ForOp, random: Random) -> bool:
    """Ops without effects, and of the loop's own iteration, stand elsewhere in it."""
    if loop.main_stage is None:
        return False
    positions = positions_of(loop)
    for op in positions:
        pure = op.effects is Effect.NONE and not op.regions and not isinstance(op, ops.Matmul)
        if pure and stage_of(op, loop) == loop.main_stage and random.random() < 0.2:
            positions[op] = random.randint(0, LAST)
    set_positions(loop, positions)
    return True
