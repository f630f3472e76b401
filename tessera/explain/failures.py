"""Draws the failure of a checked launch as one page: the tile with the elements that fail, the source, the layout."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from math import prod

import numpy as np

from tessera.backends.compiler import GPUTarget
from tessera.compiler import make_backend
from tessera.compiler.kernel import CompiledKernel
from tessera.errors import FailedTile, TesseraError
from tessera.explain import pictures
from tessera.explain.build import options_of
from tessera.explain.page import FOLDER
from tessera.explain.targets import PORTABLE
from tessera.ir import Module, Op, TileType, Type, Value, shape_of
from tessera.layout import LinearLayout

ROWS, COLUMNS = (
    128,
    256,
)  # cells that are drawn; larger tiles are drawn with several elements a cell
LISTED = 64  # elements that fail in the table
CONTEXT = 4  # source lines around the one that fails
TARGET = GPUTarget("cuda", 90, 32)  # whose layout is shown for a launch on the host


def page(error: TesseraError) -> str:
    """Return the page, as text."""
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    body = "".join(_body(error, error.failed))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>tessera: {escape(error.code)}</title>"
        f'<meta name="viewport" content="width=device-width"><style>{style}{STYLE}</style></head>\n<body><main>'
        '<button id="theme" style="float:right">light or dark</button>'
        f"{body}</main>"
        f"<script>{script}</script></body></html>\n"
    )


STYLE = """.tile rect.ok{fill:var(--tab)}.tile rect.some{fill:rgb(var(--hot));fill-opacity:.55}
.tile rect.bad{fill:rgb(var(--hot))}.tile rect.first{stroke:var(--fg);stroke-width:1.5}
.here{background:var(--mark)}pre{margin:0;white-space:pre-wrap}
"""


def _body(error: TesseraError, tile: FailedTile | None) -> Iterator[str]:
    yield f"<header><h1>{escape(error.code)}</h1><span>{escape(error.message)}</span></header>"
    if tile is not None:
        yield f"<p>{escape(_summary(tile))}</p>"
    yield f'<div class="pane"><table>{"".join(_source(error))}</table></div>'
    yield f"<h2>Report</h2><pre>{escape(error.text())}</pre>"
    if tile is None or not tile.bad:
        return
    bad = np.frombuffer(tile.bad, np.uint8).astype(bool)
    yield f'<h2>Elements</h2><div class="scroll tile">{_drawn(tile, bad)}</div>'
    layout, holder = _layout(error, tile)
    yield f"<p class='soft'>{escape(layout)}</p>" if layout else ""
    yield "".join(_table(tile, bad, holder))


def _summary(tile: FailedTile) -> str:
    shape = "x".join(map(str, tile.shape))
    failed, known = tile.bad.count(1), len(tile.bad)
    where = f"of the first {known:,} elements" if known < prod(tile.shape) else "of the elements"
    count = (
        f"{failed:,} {where} of a tile of {shape} fail"
        if known
        else f"an element of a tile of {shape} fails"
    )
    return f"{count}, in program ({', '.join(map(str, tile.program))})"


def _source(error: TesseraError) -> Iterator[str]:
    for place in error.loc.chain() if error.loc is not None else []:
        name = f"{place.file}, {place.function}" if place.function else place.file
        yield f'<tr><td></td><td class="text soft">{escape(name)}</td></tr>'
        for n in range(max(1, place.line - CONTEXT), place.line + CONTEXT + 1):
            text = linecache.getline(place.file, n).rstrip("\n")
            mark = ' class="here"' if n == place.line else ""
            if text or n == place.line:
                yield f'<tr{mark}><td class="soft">{n}</td><td class="text">{escape(text)}</td></tr>'


# --- the tile ---------------------------------------------------------------------------------------------------------
def _drawn(tile: FailedTile, bad: np.ndarray) -> str:
    """Return the tile as a picture: rows of its last dimension; a cell is red if all of its elements fail, pale red if
    some do."""
    columns = tile.shape[-1]
    rows = -(-len(bad) // columns)
    whole = np.zeros(rows * columns, bool)
    whole[: len(bad)] = bad
    down, across = -(-rows // ROWS), -(-columns // COLUMNS)
    padded = np.zeros((-(-rows // down) * down, -(-columns // across) * across), float)
    padded[:rows, :columns] = whole.reshape(rows, columns)
    cells = padded.reshape(padded.shape[0] // down, down, -1, across).sum((1, 3))
    size = max(3, min(16, 900 // cells.shape[1]))
    first = tile.index // columns // down, tile.index % columns // across
    height, width = (size * n + 2 for n in cells.shape)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">'
    parts = [head]
    for r, row in enumerate(cells):
        for start, end, share in _runs(row / (down * across), r, first):
            kind = "ok" if share == 0 else "bad" if share == 1 else "some"
            mark = " first" if (r, start) == first else ""
            title = f"rows {r * down} to {r * down + down - 1}, columns {start * across} to {end * across - 1}"
            parts.append(
                f'<rect class="{kind}{mark}" x="{start * size + 1}" y="{r * size + 1}" '
                f'width="{(end - start) * size - 1}" height="{size - 1}"><title>{title}</title></rect>'
            )
    return "".join(parts) + "</svg>"


def _runs(row: np.ndarray, r: int, first: tuple[int, int]) -> Iterator[tuple[int, int, float]]:
    """Yield runs of cells with the same share of failing elements; the first failing cell stands alone."""
    cuts = set((np.flatnonzero(np.diff(row)) + 1).tolist()) | {0, len(row)}
    if first[0] == r:
        cuts |= {first[1], first[1] + 1}
    ends = sorted(cuts)
    for start, end in pairwise(ends):
        yield start, end, float(row[start])


def _table(tile: FailedTile, bad: np.ndarray, holder: dict[int, str]) -> Iterator[str]:
    failed = np.flatnonzero(bad)
    heads = "<th>element</th>" + ("<th class='text'>thread : register</th>" if holder else "")
    yield f"<table><tr>{heads}</tr>"
    for i in failed[:LISTED].tolist():
        index = ", ".join(map(str, _indices(i, tile.shape)))
        held = f'<td class="text">{holder.get(i, "")}</td>' if holder else ""
        yield f"<tr><td>({index})</td>{held}</tr>"
    yield "</table>"
    if len(failed) > LISTED:
        yield f'<p class="soft">and {len(failed) - LISTED:,} more</p>'


def _indices(number: int, shape: tuple[int, ...]) -> list[int]:
    found: list[int] = []
    for extent in reversed(shape):
        number, i = divmod(number, extent)
        found.insert(0, i)
    return found


# --- who holds the elements -------------------------------------------------------------------------------------------
def _layout(error: TesseraError, tile: FailedTile) -> tuple[str, dict[int, str]]:
    """Return a sentence about the layout that the tile has on a GPU, and the holders of elements by number."""
    kernel = tile.kernel
    if not isinstance(kernel, CompiledKernel) or error.loc is None or not hasattr(kernel.src, "fn"):
        return "", {}
    try:
        module = _gpu_ir(kernel)
    except TesseraError as failure:
        return f"On {TARGET} the kernel has no layout: {failure.message}", {}
    for op in module.walk():
        if op.loc is None or (op.loc.file, op.loc.line) != (error.loc.file, error.loc.line):
            continue
        layout = _held(op, tile.shape)
        if layout is not None:
            text = f"On {TARGET} the tile has the layout {layout.text()}; T33:2 is register 2 of thread 33."
            return text, pictures.holders(layout, tile.shape)
    return (
        f"On {TARGET} no tile of this shape is in registers at this line: it is copied from memory as a whole.",
        {},
    )


def _gpu_ir(kernel: CompiledKernel) -> Module:
    """Return the IR with layouts that the kernel has on a GPU."""
    backend = make_backend(TARGET)
    given = {k: v for k, v in vars(options_of(kernel)).items() if k in PORTABLE}
    options = backend.parse_options(given)
    stages, module = backend.stages(options), kernel.src.make_ir(options)
    for level in ("tir", "gir"):
        module = stages[level](module, {"name": kernel.name, "shared": 0})
    return module


def _held(op: Op, shape: tuple[int, ...]) -> LinearLayout | None:
    values: list[Value] = [*op.results, *op.operands]
    types: list[Type] = [v.type for v in values]
    for t in types:
        if isinstance(t, TileType) and shape_of(t) == shape and isinstance(t.layout, LinearLayout):
            return t.layout
    return None
