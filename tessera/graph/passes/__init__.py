"""Canonicalises and fuses graphs: `optimize` runs the passes in order."""

from __future__ import annotations

from tessera.graph.ir.ops import LoopOp
from tessera.graph.passes import canonical, cost, equal, fuse, inline
from tessera.graph.passes.alive import Uses, peak_bytes
from tessera.graph.passes.biases import add_biases
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.expand_scatter import expand_scatters
from tessera.graph.passes.expand_sort import expand_sorts
from tessera.graph.passes.expanded import recompute_expanded
from tessera.graph.passes.facts import symbol_ranges
from tessera.graph.passes.index_sets import split_index_sets
from tessera.graph.passes.layouts import choose_layouts
from tessera.graph.passes.narrow import narrow_results
from tessera.graph.passes.roundings import drop_roundings
from tessera.graph.passes.small_scatters import reduce_scatters
from tessera.ir import Block, Module, PassManager, pass_

ROUNDS = 4  # of inlining and merging, at most


@pass_("graph-fuse")
def fuse_loops(module: Module) -> None:
    """Fuse the loops of each function (docs/graph-fusion.md). Loops that are left are kernels."""
    size = cost.sizes(symbol_ranges(module))
    for function in module.functions:
        body = function.regions[0]
        devices = [op.results[0].type.device for op in body if isinstance(op, LoopOp)]
        if devices:
            _fuse(module, body, cost.machine_of(devices[0]), size)


def _fuse(module: Module, body: Block, machine: Machine, size: SizeOf) -> None:
    bound = peak_bytes([[op] for op in body], Uses(body, size))
    symbols = symbol_ranges(module)
    for _ in range(ROUNDS):
        changed = _tidied(module, inline.inline_producers(body, machine, size, False, bound))
        changed |= _tidied(module, split_index_sets(body, machine, size, symbols, bound))
        changed |= _tidied(module, fuse.Fusion(body, machine, size, bound).split())
        changed |= _tidied(module, fuse.Fusion(body, machine, size, bound).vertical())
        changed |= _tidied(module, inline.inline_producers(body, machine, size, True, bound))
        changed |= _tidied(module, fuse.Fusion(body, machine, size, bound).vertical(permuted=True))
        changed |= _tidied(module, fuse.Fusion(body, machine, size, bound).horizontal())
        changed |= _tidied(module, _fuse_inside(body, machine, size))
        if not changed:
            break


def _tidied(module: Module, changed: bool) -> bool:
    """Simplify what fusion has left: maps, masks, and loads and loops that are there twice."""
    if changed:
        canonical.canonicalize(module)
        equal.merge_equal(module)
    return changed


def _fuse_inside(body: Block, machine: Machine, size: SizeOf) -> bool:
    changed = False
    for op in body:
        if isinstance(op, LoopOp):
            changed |= inline.inline_producers(op.body, machine, size, False)
    return changed


@pass_("graph-sink-scalars")
def sink(module: Module) -> None:
    """Copy scalars that the function computes into the loops that use them."""
    canonical.sink_scalars(module)


PIPELINE = [
    add_biases,
    choose_layouts,
    expand_sorts,
    canonical.canonicalize,
    reduce_scatters,
    expand_scatters,  # those that are no loops
    sink,
    equal.merge_equal,
    canonical.canonicalize,
    fuse_loops,
    recompute_expanded,
    narrow_results,
    canonical.canonicalize,
    equal.merge_equal,
]


def optimize(module: Module, verify: bool = False, round_between: bool = True) -> Module:
    """Canonicalise and fuse a graph in place; its results stay what they are, bit by bit, but for the sums of a library
    whose convolutions read tensors in other strides. Without `round_between` they may be nearer to those of real
    numbers: inside of a kernel nothing is rounded to a half type."""
    passes = list(PIPELINE)
    if not round_between:
        passes += [drop_roundings, canonical.canonicalize]
    return PassManager(passes, verify=verify).run(module)
