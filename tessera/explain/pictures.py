"""Draws layouts: which thread holds which element of a tile, which bank of shared memory holds it."""

from __future__ import annotations

from itertools import product

from tessera import ops
from tessera.analysis.reports import LayoutReport
from tessera.explain.schedule import place
from tessera.ir import Module, SharedType, TileType, Value
from tessera.layout import LinearLayout
from tessera.layout.coords import pack
from tessera.layout.linear import inverse_columns
from tessera.layout.matrix_ops import apply
from tessera.layout.shared import BANK_BYTES, BANKS

ROWS, COLUMNS = 16, 32  # of the part that is drawn


def layouts_of(module: Module) -> list[LayoutReport]:
    """Return the layouts of a module's tiles and buffers, each once."""
    found: dict[tuple[str, str], LayoutReport] = {}
    for op in module.walk():
        for v in op.results:
            t = v.type
            if isinstance(t, TileType) and t.layout is not None and len(t.shape) <= 2:
                key = ("registers", t.layout.text())
                if key not in found and not _is_plain(t):
                    cells, groups = held(t.layout, t.shape)
                    found[key] = LayoutReport(
                        f"R{len(found)}", key[1], t.shape, _used(v), key[0], cells, groups
                    )
            elif isinstance(t, SharedType) and isinstance(op, ops.LocalAllocOp):
                if t.layout is None or len(t.layout.shape) > 2:
                    continue
                key = ("shared", t.layout.text())
                if key not in found:
                    cells, groups = banked(t.layout, t.elem.storage_bytes)
                    shape = t.layout.shape
                    found[key] = LayoutReport(
                        f"S{len(found)}", key[1], shape, _used(v), key[0], cells, groups
                    )
    return list(found.values())


def _is_plain(t: TileType) -> bool:
    return t.numel < 32


def _used(v: Value) -> str:
    assert v.op is not None
    return f"{v.name or v.op.opcode} at {place(v.op)}"


def _corner(shape: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    if len(shape) == 1:
        return [[(i,) for i in range(min(shape[0], COLUMNS))]]
    return [[(r, c) for c in range(min(shape[1], COLUMNS))] for r in range(min(shape[0], ROWS))]


def held(layout: LinearLayout, shape: tuple[int, ...]) -> tuple[list[list[str]], list[list[int]]]:
    """Return, for each element of the top left corner, which lane of which warp holds it in which register (the first
    holder), as text, and the number of the lane."""
    where = _where(layout)
    cells: list[list[str]] = []
    groups: list[list[int]] = []
    for row in _corner(shape):
        holders = [where[pack(shape, at)] for at in row]
        cells.append([f"T{32 * w + l}:{r}" for l, w, r in holders])
        groups.append([l for l, _, _ in holders])
    return cells, groups


def _where(layout: LinearLayout) -> dict[int, tuple[int, int, int]]:
    """Return the first holder of each element: lane, warp, register."""
    where: dict[int, tuple[int, int, int]] = {}
    registers, lanes = layout.register_images(), _images(layout, "lane")
    for w, at_warp in enumerate(_images(layout, "warp")):
        for l, at_lane in enumerate(lanes):
            for r, at_register in enumerate(registers):
                where.setdefault(at_register ^ at_lane ^ at_warp, (l, w, r))
    return where


def holders(layout: LinearLayout, shape: tuple[int, ...]) -> dict[int, str]:
    """Return for each element, counted row by row, which register of which thread holds it."""
    where = _where(layout)
    found: dict[int, str] = {}
    for i, at in enumerate(product(*map(range, shape))):
        l, w, r = where[pack(shape, at)]
        found[i] = f"T{32 * w + l}:{r}"
    return found


def _images(layout: LinearLayout, name: str) -> list[int]:
    found = [0]
    for column in layout.columns(name):
        found += [x ^ column for x in found]
    return found


def banked(layout: LinearLayout, size: int) -> tuple[list[list[str]], list[list[int]]]:
    """Return, for each element of the top left corner, its byte offset in shared memory as text, and its bank."""
    inverse = inverse_columns(layout)
    shape = layout.shape
    cells: list[list[str]] = []
    groups: list[list[int]] = []
    for row in _corner(shape):
        offsets = [apply(inverse, pack(shape, at)) * size for at in row]
        cells.append([f"+{x}" for x in offsets])
        groups.append([x // BANK_BYTES % BANKS for x in offsets])
    return cells, groups
