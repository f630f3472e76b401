"""Times calls of small compiled graphs, where all is overhead: microseconds a call, the best of several rounds.

    python benchmarks/graph_launch.py [ROUNDS]

Each function is a chain of operations on 16 elements. `kernels`: with fuse=False, a kernel each, by native code and by
a line of Python each; `fused`: as by default. `own` is the part of a call that is tessera's: without Dynamo's guards
and AOTAutograd's wrapper, which Inductor has, too. The last row is an empty graph by torch's eager backend: the floor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import tessera.torch  # noqa: F401  registers the backend
from tessera.graph.torch.records import recording

CALLS = 300
LENGTHS = (1, 5, 20)


def chain(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = torch.sin(x)
        return x

    return f


def best(call: Callable[[], Any], rounds: int) -> float:
    """Microseconds a call."""
    times: list[float] = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS)
    return min(times[1:]) * 1e6


def compiled(
    f: Callable[..., Any], x: torch.Tensor, rounds: int, **how: Any
) -> tuple[float, float]:
    """(a call, the part of it that is tessera's)."""
    torch._dynamo.reset()
    made = torch.compile(f, **how)
    made(x)
    whole = best(lambda: made(x), rounds)
    if how["backend"] != "tessera":
        return whole, 0.0
    torch._dynamo.reset()
    with recording() as graphs:
        torch.compile(f, **how)(x)
    run = graphs[0].run
    return whole, best(lambda: run([x]), rounds)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    x = torch.randn(4, 4)
    hows: dict[str, dict[str, Any]] = {
        "kernels, native": {"backend": "tessera", "options": {"fuse": False}},
        "kernels, python": {"backend": "tessera", "options": {"fuse": False, "wrapper": "python"}},
        "fused": {"backend": "tessera"},
        "inductor": {"backend": "inductor"},
    }
    print(f"{'':24}" + "".join(f"{n:>4} ops {'own':>6} {'/eager':>7}" for n in LENGTHS))
    with torch.no_grad():
        eager = [best(lambda n=n: chain(n)(x), rounds) for n in LENGTHS]
        print(f"{'eager':24}" + "".join(f"{t:8.1f} {'':6} {1.0:7.2f}" for t in eager))
        for name, how in hows.items():
            row = ""
            for n, base in zip(LENGTHS, eager, strict=True):
                whole, own = compiled(chain(n), x, rounds, **how)
                row += f"{whole:8.1f} {own:6.1f} {whole / base:7.2f}"
            print(f"{name:24}{row}", flush=True)
        floor, _ = compiled(lambda x: x, x, rounds, backend="eager")
        print(f"{'empty graph (floor)':24}{floor:8.1f}")


if __name__ == "__main__":
    main()
