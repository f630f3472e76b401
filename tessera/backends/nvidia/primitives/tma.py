"""Copies of boxes by the TMA unit."""

from __future__ import annotations

from tessera.backends.nvidia.primitives.row import Lanes, Machine, Primitive, family, row

__all__ = ["bulk_wait", "tensor_load", "tensor_store"]

row(
    "prefetch_map", ("ptr",), "void", "prefetch.tensormap [$0];", "l", pure=False,
    machine=lambda m, map: None,
)  # fmt: skip
row(
    "bulk_commit", (), "void", "cp.async.bulk.commit_group;", "~{memory}", pure=False,
    machine=lambda m: m.tma.commit(m.on),
)  # fmt: skip


@family
def bulk_wait(pending: int, read: bool) -> Primitive:
    text = f"cp.async.bulk.wait_group{'.read' if read else ''} {pending};"
    return Primitive(
        "bulk_wait", (), "void", text, "~{memory}", False,
        lambda m: m.tma.wait(m.on, pending, read), True,
    )  # fmt: skip


@family
def tensor_load(rank: int, ctas: int = 1) -> Primitive:
    """Operands: shared address, map, barrier, coordinates starting with the contiguous one; with several `ctas` of a
    cluster also a mask of those that receive the box."""
    at = ", ".join([f"${3 + i}" for i in range(rank)])
    how, mask = ("", "") if ctas == 1 else (".multicast::cluster", f", ${3 + rank}")
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{how} "
        f"[$0], [$1, {{{at}}}], [$2]{mask};"
    )

    def meaning(m: Machine, shared: Lanes, map: Lanes, bar: Lanes, *rest: Lanes) -> None:
        members = rest[rank] if ctas > 1 else None
        m.tma.load(map, rest[:rank], shared, bar, members, m.on)

    types = ("i32", "ptr", "i32", *["i32"] * rank, *["i16"] * bool(mask))
    constraints = "r,l,r" + ",r" * rank + ",h" * bool(mask)
    return Primitive("tensor_load", types, "void", text, constraints, False, meaning, True)


@family
def tensor_store(rank: int, reduction: str = "") -> Primitive:
    """Operands: map, shared address, coordinates starting with the contiguous one."""
    at = ", ".join([f"${2 + i}" for i in range(rank)])
    kind = f"cp.reduce.async.bulk.tensor.{rank}d" if reduction else f"cp.async.bulk.tensor.{rank}d"
    how = f".{reduction}.tile" if reduction else ""
    text = f"{kind}.global.shared::cta{how}.bulk_group [$0, {{{at}}}], [$1];"

    def meaning(m: Machine, map: Lanes, shared: Lanes, *at: Lanes) -> None:
        m.tma.store(map, at, shared, reduction, m.on)

    types = ("ptr", "i32", *["i32"] * rank)
    return Primitive("tensor_store", types, "void", text, "l,r" + ",r" * rank, False, meaning, True)
