"""Lets small tensors that a forward graph saves for its backward graph share the pages that the allocator gives out.

mean: 96 bytes, rstd: 96 bytes      →      one arena of 192 bytes, in a page of 512, which lives as long as they

CUDA's caching allocator rounds each request up to a page. What a program itself gets keeps memory of its own: it may be
resized, or kept when all else is gone.
"""

from __future__ import annotations

from tessera.graph.ir.types import TensorType
from tessera.graph.planning.memory import rounded
from tessera.graph.planning.plan import OUTPUT, PAGED, Plan, storage_size
from tessera.ir import Value
from tessera.ir.applications import apply


def share_pages(plan: Plan, page: int) -> None:
    """Let the small results of a plan that are saved lie in pages of `page` bytes, as many in each as fit."""
    pages: list[list[Value]] = []
    left: list[int] = []
    for v, n in _small(plan, page):
        k = next((k for k, rest in enumerate(left) if n <= rest), len(pages))
        if k == len(pages):
            pages.append([])
            left.append(page)
        pages[k].append(v)
        left[k] -= n
    for members in pages:
        if len(members) > 1 and apply("graph-share-pages", what="page"):
            plan.pages.append(members)
            plan.place |= dict.fromkeys(members, PAGED)


def _small(plan: Plan, page: int) -> list[tuple[Value, int]]:
    """The memories that only what is saved lies in and that take half of a page at most, with their bytes."""
    tensors = [v for v in plan.results if isinstance(v.type, TensorType)]
    homes = dict.fromkeys(plan.memory(v) for v in tensors if v in plan.saved)
    shown = {plan.memory(v) for v in tensors if v not in plan.saved}
    found: list[tuple[Value, int]] = []
    for home in homes:
        size = storage_size(home.type)
        if home not in shown and plan.place[home] == OUTPUT and isinstance(size, int):
            found.append((home, rounded(size)))
    return [(home, n) for home, n in found if 0 < n <= page // 2]
