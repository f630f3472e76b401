"""Lists the passes from target-neutral tile IR to the GPU IR that the SIMT lowering takes, in order."""

from __future__ import annotations

from tessera.ir import Pass
from tessera.passes.checks.resources import check_resources
from tessera.passes.checks.synchronization import last_look
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.accelerate import accelerate
from tessera.passes.gpu_layout.assign import assign_layouts
from tessera.passes.gpu_layout.coalesce import coalesce
from tessera.passes.gpu_layout.repeated_loads import repeated_loads
from tessera.passes.gpu_layout.widen_float8 import widen_float8
from tessera.passes.gpu_loops.expand import expand_loops
from tessera.passes.gpu_loops.plan import schedule_loops
from tessera.passes.gpu_loops.plan_roles import descriptor_to_pointer, schedule_roles
from tessera.passes.gpu_loops.private import schedule_streams
from tessera.passes.gpu_mma.async_mma import async_mma
from tessera.passes.gpu_mma.split_loops import split_loops
from tessera.passes.gpu_movement.allocate import allocate_shared
from tessera.passes.gpu_movement.barriers import barriers
from tessera.passes.gpu_movement.tensor_maps import number_tensor_maps
from tessera.passes.gpu_scheduling.clusters import multicast_loads
from tessera.passes.gpu_scheduling.persist import persist
from tessera.passes.gpu_scheduling.pointer_to_tma import pointer_to_tma
from tessera.passes.gpu_scheduling.transpose_buffers import transpose_buffers
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.cse import cse
from tessera.passes.neutral.licm import licm


def gpu_passes(
    facts: GpuFacts, pointer_maps: bool = True, persistent: bool = True, no_alias: bool = True
) -> list[Pass]:
    """Passes for a GPU with these facts. The module's attributes give `num_warps` and `num_stages`. With
    `pointer_maps` the code may rely on the module's `precondition`, which a launcher checks; with `persistent`, too, it
    may be for fewer CTAs than programs, with `no_alias` for arrays that do not overlap."""
    return [
        check_resources.bind(facts=facts),  # before any work on a kernel that cannot fit
        widen_float8,
        # Makes what the next passes look at.
        *([pointer_to_tma.bind(facts=facts, no_alias=no_alias)] if pointer_maps else []),
        *([persist.bind(facts=facts)] if pointer_maps and persistent else []),
        multicast_loads,  # while it is seen what depends on the CTA
        descriptor_to_pointer.bind(facts=facts),  # before accesses get layouts
        repeated_loads,  # before layouts, by which threads would load the same again
        coalesce.bind(facts=facts),  # while pointers are still seen as the author wrote them
        # Reads the orders that coalescing found; fixes the layouts of dots.
        accelerate.bind(facts=facts),
        assign_layouts.bind(facts=facts),  # now that all fixed layouts are known
        cse,  # copies of index arithmetic in one layout
        licm,  # conversions and arithmetic that became invariant
        transpose_buffers.bind(facts=facts),  # needs to know what is read back from shared memory
        # These need layouts: boxes and swizzles follow from them, and only whole vectors may be copied asynchronously.
        schedule_roles.bind(facts=facts),
        schedule_streams.bind(facts=facts),
        schedule_loops.bind(facts=facts),
        expand_loops,
        split_loops,  # now that what an iteration hands on is carried
        canonicalize,  # pointers that the pipeline left behind, what nobody uses any more
        cse,  # slices that several loads of a loop share
        licm,
        async_mma.bind(facts=facts),  # after the last pass that moves ops
        # After the last pass that makes, moves or drops conversions.
        allocate_shared.bind(facts=facts),
        number_tensor_maps,  # now that the copies are what they will be
        barriers,  # needs the bytes that buffers share
        *last_look(),
    ]
