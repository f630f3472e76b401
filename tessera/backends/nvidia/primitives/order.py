"""Lists the instructions that order threads: barriers, fences, mbarriers and elections."""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Lanes, Machine, Primitive, family, row

__all__ = [
    "barrier_of", "group_barrier", "mbarrier_expect", "mbarrier_init", "memory_fence", "named_barrier_arrive",
    "named_barrier_sync", "set_registers",
]  # fmt: skip

MEMORY = "~{memory}"


def _nothing(m: Machine) -> None:
    """Do nothing: the simulator's order is stronger, as its threads see each other's plain stores at once."""


# --- barriers and fences ----------------------------------------------------------------------------------------
row("barrier", (), "void", "bar.sync 0;", MEMORY, pure=False, machine=lambda m: m.barrier(0))
row(
    "proxy_fence", (), "void", "fence.proxy.async.shared::cta;", MEMORY, pure=False,
    machine=lambda m: m.proxy_fence(),
)  # fmt: skip
row(
    "proxy_fence_all", (), "void", "fence.proxy.async;", MEMORY, pure=False,
    machine=lambda m: m.proxy_fence(),
)  # fmt: skip
row(
    "warp_sync", (), "void", "bar.warp.sync 0xffffffff;", MEMORY, pure=False,
    machine=lambda m: m.knowledge.meet(m.whole_warps("bar.warp.sync")),
)  # fmt: skip
row(
    "cluster_barrier", (), "void", "barrier.cluster.arrive.relaxed; barrier.cluster.wait;", MEMORY,
    pure=False, machine=lambda m: m.cluster_barrier(),
)  # fmt: skip
row("grid_wait", (), "void", "griddepcontrol.wait;", MEMORY, pure=False, machine=_nothing)
row(
    "grid_launch_dependents", (), "void", "griddepcontrol.launch_dependents;", MEMORY, pure=False,
    machine=_nothing,
)  # fmt: skip
row("trap", (), "void", "trap;", MEMORY, pure=False, machine=lambda m: m.trap())


@family
def memory_fence(scope: str) -> Primitive:
    text = f"fence.acq_rel.{scope};"
    return Primitive("memory_fence", (), "void", text, MEMORY, False, _nothing, True)


@family
def named_barrier_sync(number: int, threads: int) -> Primitive:
    return Primitive(
        "barrier", (), "void", f"bar.sync {number}, {threads};", MEMORY, False,
        lambda m: m.barrier(number, threads), True,
    )  # fmt: skip


@family
def named_barrier_arrive(number: int, threads: int) -> Primitive:
    """Arrive at a barrier at which other warps wait."""
    return Primitive(
        "barrier", (), "void", f"bar.arrive {number}, {threads};", MEMORY, False,
        lambda m: m.barrier(number, threads, stay=False), True,
    )  # fmt: skip


@family
def group_barrier(threads: int, stay: bool = True) -> Primitive:
    """The barrier whose number is the operand; with `stay` False, threads arrive without waiting."""
    how = "sync" if stay else "arrive"
    return Primitive(
        "barrier", ("i32",), "void", f"bar.{how} $0, {threads};", "r", False,
        lambda m, number: m.barrier(number, threads, stay=stay), True,
    )  # fmt: skip


@family
def barrier_of(who: int, number: int, threads: int, stay: bool) -> Primitive:
    """A barrier at which only those warps arrive whose operand is `who`."""
    how = "sync" if stay else "arrive"
    text = f"{{ .reg .pred p; setp.eq.u32 p, $0, {who}; @p bar.{how} {number}, {threads}; }}"

    def meaning(m: Machine, mine: Lanes) -> None:
        m.barrier(number, threads, stay=stay, among=mine == np.uint64(who))

    return Primitive("barrier", ("i32",), "void", text, "r", False, meaning, True)


# No arrival after it is issued before the first operand is there: a word is read from an address that depends on it
# and on the second operand, and an arrival does not pass earlier accesses. Without that, loaded data may still be under
# way when the arrival is issued, and the TMA unit, which may then write, overtakes the load.
row(
    "await_word", ("i32", "i32"), "void",
    "{ .reg .pred p; .reg .b32 t; setp.eq.u32 p, $0, 0x9e3779b9; @p ld.volatile.shared.b32 t, [$1]; }",
    "r,r,~{memory}", pure=False, machine=lambda m, word, address: None,
)  # fmt: skip


# --- mbarriers ----------------------------------------------------------------------------------------------------
@family
def mbarrier_init(count: int) -> Primitive:
    text = f"mbarrier.init.shared::cta.b64 [$0], {count};"
    return Primitive(
        "mbarrier_init", ("i32",), "void", text, "r", False,
        lambda m, bar: m.mbarriers.init(bar, count, m.on), True,
    )  # fmt: skip


@family
def mbarrier_expect(bytes: int) -> Primitive:
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes};"
    return Primitive(
        "mbarrier_expect", ("i32",), "void", text, "r", False,
        lambda m, bar: m.mbarriers.arrive(bar, m.on, expect=bytes), True,
    )  # fmt: skip


row(
    "mbarrier_fence", (), "void", "fence.mbarrier_init.release.cluster;", MEMORY, pure=False,
    machine=_nothing,
)  # fmt: skip
row(
    "mbarrier_inval", ("i32",), "void", "mbarrier.inval.shared::cta.b64 [$0];", "r", pure=False,
    machine=lambda m, bar: m.mbarriers.invalidate(bar, m.on),
)  # fmt: skip
row(
    "mbarrier_arrive", ("i32",), "void", "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", pure=False,
    machine=lambda m, bar: m.mbarriers.arrive(bar, m.on),
)  # fmt: skip


def _arrive_in(m: Machine, bar: Lanes, rank: Lanes) -> None:
    m.mbarriers.arrive(m.shared.in_block(bar, rank), m.on)


row(
    "mbarrier_arrive_in", ("i32", "i32"), "void",
    "{ .reg .b32 R; mapa.shared::cluster.u32 R, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [R]; }",
    "r,r", pure=False, machine=_arrive_in,
)  # fmt: skip


def _arrive_of_warp(m: Machine, bar: Lanes, lane: Lanes) -> None:
    m.mbarriers.arrive(bar, m.on & (lane == 0))


row(
    "mbarrier_arrive_of_warp", ("i32", "i32"), "void",
    "{ .reg .pred p; setp.eq.u32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }",
    "r,r", pure=False, machine=_arrive_of_warp,
)  # fmt: skip
row(
    "mbarrier_arrive_after_copies", ("i32",), "void",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r", pure=False,
    machine=lambda m, bar: m.copies.arrive(bar, m.on),
)  # fmt: skip


def _try(m: Machine, bar: Lanes, parity: Lanes) -> Lanes:
    """One try: the warp sleeps until the phase is complete, which the hardware may do for a limited time."""
    m.mbarriers.wait(bar, parity, m.on)
    return np.ones(m.threads, np.uint64)


row(
    "mbarrier_try", ("i32", "i32"), "i32",
    "{ .reg .pred P; mbarrier.try_wait.parity.shared::cta.b64 P, [$1], $2; selp.b32 $0, 1, 0, P; }",
    "=r,r,r", pure=False, machine=_try,
)  # fmt: skip
row(
    "mbarrier_wait", ("i32", "i32"), "void",
    "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra W; }",
    "r,r", pure=False, machine=lambda m, bar, parity: m.mbarriers.wait(bar, parity, m.on),
)  # fmt: skip


# --- roles ----------------------------------------------------------------------------------------------------------
def _elect(m: Machine) -> Lanes:
    m.whole_warps("elect.sync")
    return (m.on & (np.arange(m.threads) % 32 == 0)).astype(np.uint64)


row(
    "elect", (), "i32", "{ .reg .pred P; elect.sync _|P, 0xffffffff; selp.b32 $0, 1, 0, P; }", "=r",
    pure=False, machine=_elect,
)  # fmt: skip


@family
def set_registers(grow: bool, count: int) -> Primitive:
    text = f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32 {count};"
    return Primitive(
        "set_registers", (), "void", text, MEMORY, False, lambda m: m.whole_warps("setmaxnreg"), True
    )  # fmt: skip
