"""Draws what kernels of the tutorials do, from runs on the interpreter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver
from tools.site import plots
from tools.site.code import ROOT, run_page
from tools.site.svg import CELLS, DIGITS, FAINT, INK, LINES, SIZE, Picture

PALE = "#d5d9de"


def interpreted(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    driver.set_active("interpreter")
    try:
        kernel[grid](*args, **options)
    finally:
        driver.reset_active()


def page(name: str) -> dict[str, Any]:
    """The names that a tutorial's code defines."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run_page(ROOT / f"docs/tutorials/{name}.md", Path(folder), namespace=names)
    return names


def square(
    picture: Picture, x: float, y: float, fill: str, words: str = "", side: float = SIZE
) -> None:
    picture.box(x, y, side, side, fill, "#8a9099")
    if words:
        picture.text(x + side / 2, y + side / 2 + 4, words, "middle", 11, DIGITS)


@tessera.jit
def _programs(out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.program_id(0), mask=i < n)


def programs() -> Picture:
    """Which program writes which element, and what is masked."""
    n, block = 20, 8
    out = np.full(24, -1, np.int32)
    interpreted(_programs, (3,), out, n, BLOCK=block)
    picture = Picture("Three programs of 8 elements each work on an array of 20")
    for k in range(3):
        picture.text(10 + (k * 8 + 4) * SIZE, 14, f"program {k}", "middle", 12)
        picture.line(12 + k * 8 * SIZE, 20, 8 + (k + 1) * 8 * SIZE, 20, LINES[k], 3)
    for i, program in enumerate(out):
        square(picture, 10 + i * SIZE, 26, CELLS[program] if program >= 0 else PALE, str(i))
    picture.text(10 + 22 * SIZE, 74, "masked", "middle", 12)
    picture.text(10, 74, "elements of the array", size=12)
    return picture


def softmax_traffic() -> Picture:
    """Readings and writings of a matrix, by step."""
    steps = {"max": (1, 0), "x - max": (1, 1), "exp": (1, 1), "sum": (1, 0), "divide": (1, 1)}
    groups = {name: {"read": float(r), "written": float(w)} for name, (r, w) in steps.items()}
    groups["fused kernel"] = {"read": 1.0, "written": 1.0}
    return plots.bars("How often each step moves the matrix", groups, "× the matrix")


def matmul_blocks() -> Picture:
    """The blocks of A and B that one block of C needs."""
    picture = Picture("A block of C is made of a row of blocks of A and a column of blocks of B")
    side, gap, mine = 34, 40, (1, 2)
    rows, inner, cols = 3, 4, 4
    left, top = 10 + inner * side + gap, 24 + inner * side + gap

    def grid(
        x: float, y: float, h: int, w: int, name: str, chosen: Callable[[int, int], int | None]
    ) -> None:
        picture.text(x + w * side / 2, y - 8, name, "middle")
        for r in range(h):
            for c in range(w):
                k = chosen(r, c)
                square(
                    picture,
                    x + c * side,
                    y + r * side,
                    CELLS[k] if k is not None else PALE,
                    "" if k is None else f"k{k}" if k < inner else "",
                    side,
                )

    grid(10, top, rows, inner, "A", lambda r, c: c if r == mine[0] else None)
    grid(left, 24, inner, cols, "B", lambda r, c: r if c == mine[1] else None)
    grid(left, top, rows, cols, "C", lambda r, c: 8 if (r, c) == mine else None)
    picture.text(left + cols * side + 20, top + 60, "= A k0 · B k0 + A k1 · B k1 + …", size=12)
    return picture


@tessera.jit
def _order(out, M, N, GROUP: tl.constexpr):
    p = tl.program_id(0)
    i, j = tl.swizzle2d(p // N, p % N, M, N, GROUP)
    tl.store(out + i * N + j, p)


def matmul_order() -> Picture:
    """Two orders of programs, and what the first eight of each read."""
    picture = Picture("Two orders in which programs take blocks of C")
    x = 10.0
    for title, group in (("row by row", 1), ("in groups of 2 rows", 2)):
        out = np.zeros((6, 8), np.int32)
        interpreted(_order, (48,), out, 6, 8, GROUP=group)
        first = np.argwhere(out < 8)
        rows, cols = (len(set(first[:, k])) for k in (0, 1))
        picture.text(x, 14, title)
        for (r, c), program in np.ndenumerate(out):
            square(
                picture,
                x + c * 28,
                22 + r * 28,
                CELLS[2] if program < 8 else PALE,
                str(program),
                28,
            )
        picture.text(x, 210, f"the first 8 read {rows} rows of A's blocks", size=12)
        picture.text(x, 227, f"and {cols} columns of B's: {rows + cols} together", size=12)
        x += 8 * 28 + 50
    return picture


def layer_norm_sums() -> Picture:
    """Sums along rows stay within a program, sums down columns do not."""
    picture = Picture("dx needs sums along rows, dw and db sums down columns")
    owners, cols = [0, 1, 2, 0, 1, 2], 9
    for r, owner in enumerate(owners):
        picture.text(10, 46 + r * SIZE, f"program {owner}", size=12)
        for c in range(cols):
            square(picture, 84 + c * SIZE, 26 + r * SIZE, CELLS[owner])
        picture.arrow(84 + cols * SIZE + 4, 41 + r * SIZE, 84 + cols * SIZE + 40, 41 + r * SIZE)
    picture.text(84 + cols * SIZE + 48, 26 + 3 * SIZE + 4, "a number for each row: dx", size=12)
    bottom = 26 + len(owners) * SIZE
    picture.arrow(84 + cols * SIZE / 2, bottom + 4, 84 + cols * SIZE / 2, bottom + 30)
    for p in range(3):
        picture.text(10, bottom + 54 + p * 20, f"partial sum {p}", size=12)
        for c in range(cols):
            picture.box(100 + c * 28, bottom + 38 + p * 20, 28, 20, CELLS[p], "#8a9099")
    picture.text(
        100 + cols * 28 + 12, bottom + 72, "then added by a second kernel: dw, db", size=12
    )
    return picture


def dropout() -> Picture:
    """What three launches keep."""
    kernel, picture = (
        page("05-dropout")["dropout_kernel"],
        Picture("What is kept by dropout, for three launches"),
    )
    for k, seed in enumerate((1, 1, 2)):
        out = np.zeros((12, 24), np.float32)
        interpreted(kernel, (1,), np.ones(288, np.float32), out, 288, 0.5, seed, BLOCK=512)
        x = 10 + k * 260
        picture.text(x, 14, f"seed {seed}" + " again" * (k == 1))
        for (r, c), value in np.ndenumerate(out):
            picture.box(x + c * 10, 22 + r * 10, 10, 10, LINES[0] if value else PALE, "#8a9099")
    return picture


@tessera.jit
def _randn(out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.randn(42, i))


def randn() -> Picture:
    """A histogram of normal numbers beside the density."""
    out = np.zeros(100 * 1024, np.float32)
    interpreted(_randn, (100,), out, BLOCK=1024)
    counts, edges = np.histogram(out, 48, (-4, 4))
    share = counts / out.size / (edges[1] - edges[0])
    picture = Picture("Histogram of 102,400 numbers of tl.randn, and the normal density")
    scale, base, wide = 480, 220, 11
    for k, height in enumerate(share):
        picture.box(20 + k * wide, base - height * scale, wide, height * scale, CELLS[0], "#8a9099")
    middle = (edges[1:] + edges[:-1]) / 2
    density = np.exp(-(middle**2) / 2) / np.sqrt(2 * np.pi)
    points = " ".join(
        f"{20 + (k + 0.5) * wide:.1f},{base - d * scale:.1f}" for k, d in enumerate(density)
    )
    picture.add(f'<polyline points="{points}" fill="none" stroke="{LINES[1]}" stroke-width="2.5"/>')
    for value in range(-4, 5):
        picture.text(20 + (value + 4) * 6 * wide, base + 18, str(value), "middle", 11)
    picture.line(20, base, 20 + 48 * wide, base, INK)
    return picture


@tessera.jit
def _online(x, tops, totals, n, BLOCK: tl.constexpr):
    top, total = -float("inf"), 0.0
    for start in range(0, n, BLOCK):
        piece = tl.load(x + start + tl.arange(0, BLOCK))
        higher = tl.maximum(top, tl.max(piece))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(piece - higher))
        top = higher
        tl.store(tops + start // BLOCK, top)
        tl.store(totals + start // BLOCK, total)


def online_softmax() -> Picture:
    """A row, and maximum and sum after each piece."""
    n, block, unit, base = 128, 16, 26, 130
    x = np.random.default_rng(3).standard_normal(n).astype(np.float32) + np.linspace(
        -1, 1, n, dtype=np.float32
    )
    tops, totals = np.zeros((2, n // block), np.float32)
    interpreted(_online, (1,), x, tops, totals, n, BLOCK=block)
    picture = Picture("A row of 128 numbers in pieces of 16: the maximum and the sum so far")
    picture.text(10, 14, "the row, its pieces, and the maximum so far (line)", size=12)
    for i, value in enumerate(x):
        picture.box(
            10 + i * 5, base - max(value, 0) * unit, 5, abs(value) * unit, CELLS[i // block], "none"
        )
    for k, (top, total) in enumerate(zip(tops, totals)):
        picture.line(10 + k * 80, base - top * unit, 90 + k * 80, base - top * unit, LINES[3], 2.5)
        picture.text(50 + k * 80, 266, f"{total:.1f}", "middle", 12)
    picture.line(10, base, 650, base, FAINT)
    picture.text(10, 246, "the sum of exp(x - maximum) so far", size=12)
    return picture


def causal() -> Picture:
    """Blocks of scores that programs visit: the loop's bounds, as the kernel of the tutorial has them."""
    picture, block, count = Picture("Blocks of scores that each program computes"), 64, 8
    for k, title in enumerate(("without a mask", "causal")):
        x, visited = 10 + k * 300, 0
        picture.text(x, 14, title)
        for program in range(count):
            last = min(block * count, (program + 1) * block) if k else block * count
            for j in range(count):
                seen = j * block < last
                visited += seen
                square(picture, x + j * SIZE, 22 + program * SIZE, CELLS[program] if seen else PALE)
        picture.text(x, 22 + count * SIZE + 18, f"{visited} blocks", size=12)
    picture.text(
        10, 22 + count * SIZE + 38, "a row is a program, a column a piece of the keys", size=12
    )
    return picture


def quantised_error() -> Picture:
    """The error of each column with one scale for all, and with a scale for each column."""
    names = page("07-quantised-matmul")
    a, b, exact = names["a"], names["b"], names["exact"]
    qa, (q, scale) = names["quantise"](a), names["quantise"](b)
    one = np.full_like(scale, scale.max())
    coarse = (np.floor(b / one[:, None] + 0.5).astype(np.int8), one)
    columns = [(1 << k) - 1 for k in range(9)]
    series = {
        label: [
            float(e) * 100
            for e in (np.abs(names["int8_matmul"](qa, qb) - exact).mean(0) / np.abs(exact).mean(0))[
                columns
            ]
        ]
        for label, qb in (("a scale for each column", (q, scale)), ("one scale", coarse))
    }
    return plots.lines(
        "Error of a quantised product by column", [c + 1.0 for c in columns], series, "error, %",
        "column of B (the first is 100 times smaller than the last)",
    )  # fmt: skip


def out_of_bounds() -> Picture:
    """What the programs of the wrong kernel read, of a matrix of 5 rows of 12."""
    picture, rows, cols, block = (
        Picture("Programs that read 16 elements where a row has 12"),
        5,
        12,
        16,
    )
    picture.text(10, 14, "memory: 5 rows of 12 elements, then what belongs to nobody", size=12)
    wide = 9
    for i in range(rows * block):
        inside = i < rows * cols
        picture.box(
            10 + i * wide,
            22,
            wide,
            24,
            CELLS[i // cols % 5] if inside else "none",
            "#8a9099" if inside else FAINT,
        )
    for program in range(rows):
        x, end = 10 + program * block * wide, 10 + (program + 1) * block * wide
        beyond = (program + 1) * block > rows * cols
        picture.line(x + 2, 58, end - 2, 58, LINES[3] if beyond else INK, 3)
        picture.text(
            (x + end) / 2, 76, f"program {program}", "middle", 11, LINES[3] if beyond else INK
        )
    return picture


def strides() -> Picture:
    """A tile down a column, and one along rows, in memory."""
    picture, rows, cols = Picture("What a tile of 8 elements touches"), 8, 16
    for k, title in enumerate(("down a column: 8 lines of the cache", "along a row: one line")):
        x = 10 + k * 300
        picture.text(x, 14, title, size=12)
        for r in range(rows):
            for c in range(cols):
                mine = (c == 3) if k == 0 else (r == 2 and c < 8)
                line = (c // 8 == 0) if k == 0 else (r == 2 and c // 8 == 0)
                fill = LINES[0] if mine else CELLS[0] if line else PALE
                picture.box(x + c * 17, 22 + r * 17, 17, 17, fill, "#8a9099")
    picture.text(
        10, 22 + rows * 17 + 18, "dark: read by the tile; light: comes along from memory", size=12
    )
    return picture


FIGURES: dict[str, Callable[[], Picture]] = {
    "programs": programs, "softmax-traffic": softmax_traffic, "matmul-blocks": matmul_blocks,
    "matmul-order": matmul_order, "layer-norm-sums": layer_norm_sums, "dropout": dropout, "randn": randn,
    "online-softmax": online_softmax, "causal": causal, "quantised-error": quantised_error,
    "out-of-bounds": out_of_bounds, "strides": strides,
}  # fmt: skip
