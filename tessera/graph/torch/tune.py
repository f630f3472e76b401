"""Times a matrix product by eager and by kernels of ours, and keeps the times: `options={"matmul": "timed"}`.

Each product is timed once on the device that it runs on, alone, in its own sizes and strides. Times are kept where
those of autotuned kernels are (tessera/runtime/autotuner/store.py), for this device, this version of tessera and of
torch; the knobs TESSERA_CACHE_AUTOTUNING, TESSERA_TUNE_VERIFY and TESSERA_PRINT_AUTOTUNING hold here, too.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.pool import default_threads
from tessera.config import knobs
from tessera.dtypes import dtype
from tessera.errors import TesseraError
from tessera.graph.calls.executable import Executable, compile_graph, machine_of
from tessera.graph.emit.matmul import variants
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import MatmulOp
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.plan import Launch
from tessera.graph.report.timing import measured
from tessera.graph.torch.host import TorchHost, current, target_of
from tessera.graph.torch.types import Size, any_torch_type
from tessera.ir import Module
from tessera.runtime.autotuner import store
from tessera.runtime.benchmark import do_bench
from tessera.runtime.cache.disk import toolchain_fingerprint

EAGER = "eager"
WARM_UP, BUDGET = 5, 20  # ms of each measurement on a GPU
# By EAGER or the text of blocks: [ms], infinite for what does not run.
Times = dict[str, list[float]]
_KNOWN: dict[str, Times] = {}  # of this process, by file


@dataclass(frozen=True)
class TimedProduct:
    """a[…, M, K] @ b[…, K, N], added up in `acc`, rounded to `elem`; all sizes and strides are known."""

    a: TensorType
    b: TensorType
    acc: dtype
    elem: dtype
    precision: str

    @property
    def key(self) -> list[object]:
        sides = [(x.shape, x.all_strides, x.elem.name) for x in (self.a, self.b)]
        device = self.a.device.split(":")[0]
        threads = (default_threads(), torch.get_num_threads()) if device == "cpu" else ()
        return [*sides, self.acc.name, self.elem.name, self.precision, device, threads, torch.__version__]  # fmt: skip

    def module(self, blocks: Sequence[int] = ()) -> Module:
        g = GraphBuilder("product", device=self.a.device)
        a, b = g.input("a", self.a), g.input("b", self.b)
        g.output(g.matmul(a, b, self.acc, self.elem, self.precision, tuple(blocks)))
        return g.finish()


def times_of(product: TimedProduct) -> Times:
    """The times of a product by eager and by each variant of our kernel, from the disk if they are there."""
    path = store.path_for("graph_matmul", toolchain_fingerprint(), product.key)
    times = _KNOWN.get(path)
    if times is None:
        times = store.read(path) if knobs.autotuning.cache else {}
        if not times:
            with (
                _disable_current_modes(),
                torch.no_grad(),
                plain_types(product),
                current(product.a.device),
            ):
                times = _measured(product)
            if knobs.autotuning.cache:
                store.write(path, product.key, times)
        _KNOWN[path] = times
        if knobs.autotuning.print:
            shown = ", ".join(f"{name} {ms[0]:.4f} ms" for name, ms in times.items())
            print(f"Autotuning graph.matmul {product.a.short} @ {product.b.short}: {shown}")
    return times


def plain_types(product: TimedProduct) -> torch.autocast:
    """A region in which eager multiplies the operands as they are, whatever the program's autocast does around it."""
    return torch.autocast(product.a.device.split(":")[0], enabled=False)


def fastest(times: Times) -> tuple[int, ...]:
    """The blocks of the fastest kernel; () if eager is as fast."""
    best = min(times, key=lambda name: times[name][0])  # of equal ones the first: eager
    return () if best == EAGER else tuple(int(n) for n in best.split("x"))


def _measured(product: TimedProduct) -> Times:
    device = product.a.device
    target = target_of(device)
    given = [_numbers(t, seed) for seed, t in enumerate((product.a, product.b))]
    by_eager = partial(torch.matmul, *given)
    wanted = by_eager()
    times: Times = {EAGER: [time_of(by_eager, device)]}
    op = next(x for x in product.module().walk() if isinstance(x, MatmulOp))
    machine = machine_of(target or GPUTarget("cpu", "native", 1))
    for blocks in map(astuple, variants(op, machine)):
        kernel = _kernel(product, blocks, target)
        ms = float("inf")
        if kernel is not None and _agrees(kernel, given, wanted):
            ms = time_of(partial(_run, kernel, given), device)
        times["x".join(map(str, blocks))] = [ms]
    return times


def _kernel(
    product: TimedProduct, blocks: Sequence[int], target: GPUTarget | None
) -> Executable | None:
    """The product as a graph of its own; None where no such kernel can be made or loaded."""
    try:
        host = TorchHost({}, {}, product.a.device)
        exe = compile_graph(product.module(blocks), host, target)
    except TesseraError:
        return None
    return exe if all(isinstance(step, Launch) for step in exe.plan.steps) else None


def _run(kernel: Executable, given: Sequence[torch.Tensor]) -> list[Any]:
    return kernel(list(given))  # which it empties


def _agrees(kernel: Executable, given: list[torch.Tensor], wanted: torch.Tensor) -> bool:
    """Whether a kernel gives eager's product but for rounding."""
    if not knobs.autotuning.verify:
        return True
    (found,) = _run(kernel, given)
    off = (found.double() - wanted.double()).abs().max()
    return bool(off <= 0.02 * wanted.double().abs().max())


def time_of(run: Callable[[], Any], device: str) -> float:
    """The time of a call in ms: on a GPU the device's, with nothing in its L2; on a CPU of one call among many."""
    if device == "cpu":
        return 1e3 * measured(run, lambda: None)
    return do_bench(run, warmup=WARM_UP, rep=BUDGET, return_mode="median")


def known(sizes: Sequence[Size]) -> list[int]:
    return [n for n in sizes if isinstance(n, int)]


def _numbers(t: TensorType, seed: int) -> torch.Tensor:
    """Random numbers of a type, which take nothing from the program's own."""
    kind, shape = any_torch_type(t.elem), known(t.shape)
    source = torch.Generator(t.device).manual_seed(seed)
    made = torch.empty_strided(shape, known(t.all_strides), dtype=kind, device=t.device)
    plain = torch.randn(shape, dtype=torch.float32, device=t.device, generator=source)
    dense = [slice(0, 1) if step == 0 else slice(None) for step in t.all_strides]
    made[tuple(dense)] = plain[tuple(dense)].to(kind)
    return made
