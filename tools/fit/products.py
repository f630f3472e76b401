"""Fits the times of matrix products on a GPU: `python -m tools.fit.products [--tries 6000] [FILE]`.

FILE has what `benchmarks/product_tiles.py` measured (benchmarks/results/product_tiles.json by default). Printed are the
constants of tessera/graph/emit/product_time.py under which the estimated times differ least from those that were
measured, and how much slower the tiles are that are then taken for the fastest than those that were.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

from tessera.graph.emit import product_time
from tessera.graph.emit.product_time import Blocks, Shape, microseconds

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks/results/product_tiles.json"
CONSTANTS = ("START", "PRODUCTS", "LOADS", "LATENCY", "STORES", "MEMORY")
NEAR, FAR = 1.25, 0.3  # tiles this much slower than the best count so much less
EAGER = "torch"
Row = tuple[Shape, float, dict[Blocks, float]]  # µs of eager, µs by tiles


def rows_of(path: Path) -> list[Row]:
    found: list[Row] = []
    for row in json.loads(path.read_text("utf-8"))["rows"]:
        m, k, n = map(int, row["shape"].split()[0].split("x"))
        times: dict[str, float] = row["times"]
        tiles = {Blocks(*map(int, x.split("x"))): t for x, t in times.items() if x[0].isdigit()}
        found.append((Shape(1, m, k, n), times[EAGER], tiles))
    return found


def distance(rows: list[Row]) -> float:
    """How far estimated times are from those of the rows: the mean square of the logarithm of their ratio."""
    total = count = 0.0
    for shape, _, times in rows:
        best = min(times.values())
        for b, t in times.items():
            far = math.log(microseconds(shape, b) / t) ** 2
            total, count = total + (far if t < NEAR * best else FAR * far), count + 1
    return total / count


def taken(rows: list[Row]) -> Iterator[tuple[float, float]]:
    """For each row the time of the tiles that are estimated to be the fastest, relative to the fastest and to eager."""
    for shape, eager, times in rows:
        found = times[min(times, key=lambda b: microseconds(shape, b))]
        yield found / min(times.values()), found / eager


def fit(rows: list[Row], tries: int) -> float:
    """Set the constants to the nearest of random ones around those of today."""
    draw, spread = random.Random(0), 0.3
    best = distance(rows)
    for k in range(tries):
        old = {name: getattr(product_time, name) for name in CONSTANTS}
        for name, value in old.items():
            if draw.random() < 0.4:
                setattr(product_time, name, value * math.exp(draw.gauss(0, spread)))
        now = distance(rows)
        if now < best:
            best = now
        else:
            for name, value in old.items():
                setattr(product_time, name, value)
        if k % max(1, tries // 4) == tries // 4 - 1:
            spread /= 2
    return best


def main() -> None:
    parser = argparse.ArgumentParser("tools.fit.products", description=(__doc__ or "").partition("\n")[0])  # fmt: skip
    parser.add_argument("file", nargs="?", type=Path, default=MEASURED)
    parser.add_argument("--tries", type=int, default=6000)
    args = parser.parse_args()
    rows = rows_of(args.file)
    print(f"today: distance {distance(rows):.4f}, {_told(rows)}")
    print(f"fitted: distance {fit(rows, args.tries):.4f}, {_told(rows)}")
    for name in CONSTANTS:
        print(f"{name} = {getattr(product_time, name):.3g}")


def _told(rows: list[Row]) -> str:
    slower, than_eager = zip(*taken(rows), strict=True)
    means = [math.exp(sum(map(math.log, x)) / len(x)) for x in (slower, than_eager)]
    return f"tiles taken: {means[0]:.3f} of the best's time ({max(slower):.2f} at most), {means[1]:.3f} of eager's"


if __name__ == "__main__":
    main()
