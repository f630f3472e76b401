"""Launches kernels in the simulator: a grid's programs one after the other, or in turns, on arguments in place."""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tessera.analysis.intervals import Interval, evaluate, holds
from tessera.backends.nvidia.primitives.lanes import bits_of, mask_int
from tessera.backends.nvidia.simulator.banks import Banks, Traffic
from tessera.backends.nvidia.simulator.boxes import TensorMap
from tessera.backends.nvidia.simulator.machine import Machine
from tessera.backends.nvidia.simulator.memory import Global
from tessera.backends.nvidia.simulator.program import program_of
from tessera.backends.nvidia.simulator.text import full
from tessera.config import knobs
from tessera.dtypes import FLOATS
from tessera.errors import InvalidOption, SimulatedHazard

SCALARS = {t.short: t.llvm for t in FLOATS if t.is_standard_floating()}
LATENCIES = ("eager", "late", "random")
MOST_TURNS = 5000  # of programs that wait, without a change of global memory


@dataclass
class Report:
    """What a launch did: how often each kind of access and primitive ran (`counts`), bytes stored (`written`), source
    lines that read uninitialised shared memory (`uninitialised`), and with `TESSERA_SIMT_BANKS` the passes over
    the banks by (source line, primitive)."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    written: dict[str, int] = field(default_factory=dict[str, int])
    uninitialised: dict[str, int] = field(default_factory=dict[str, int])
    banks: dict[tuple[str, str], Traffic] = field(default_factory=dict[tuple[str, str], Traffic])

    def render(self) -> str:
        lines = [
            f"{n} uninitialised reads of shared memory at {at}"
            for at, n in self.uninitialised.items()
        ]
        for (at, name), t in self.banks.items():
            lines.append(
                f"{at or '?'}: {name}: {t.accesses} accesses of warps, {t.passes} passes over the banks, "
                f"{t.conflicts} of them conflicts"
            )
        return "\n".join(lines)


def precondition_holds(metadata: object, values: list[Any], grid: tuple[int, ...]) -> bool:
    """Whether a launch passes the kernel's precondition."""
    args = {i: x for i, (_, x) in enumerate(values) if isinstance(x, int)}
    found = evaluate(getattr(metadata, "host_code", ()), args, grid)
    return holds(getattr(metadata, "precondition", ()), found)


def argument(kind: str, value: Any) -> tuple[str, Any]:
    """Return (LLVM type, number) of a launch argument of a kind of the signature; an array's number is its address."""
    while hasattr(value, "base") and not isinstance(value, np.ndarray):
        value = value.base  # the bits of a typed view
    if isinstance(value, np.ndarray):
        return ("ptr", value.ctypes.data)
    if hasattr(value, "data_ptr"):
        return ("ptr", value.data_ptr())
    if kind in SCALARS:
        return (SCALARS[kind], float(value))
    return ("ptr" if kind.startswith(("*", "ptr")) else "i64", int(value or 0))


def _whole(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    base = array.base
    return _whole(base) if isinstance(base, np.ndarray) else array


def remember(memory: Global, value: Any) -> None:
    """Let kernels access the storage of an argument; a raw address may point to anything."""
    while hasattr(value, "base") and not isinstance(value, np.ndarray):
        value = value.base
    if isinstance(value, np.ndarray):
        low, high = np.lib.array_utils.byte_bounds(_whole(value))  # pyright: ignore[reportUnknownArgumentType]
        memory.add(low, high)
    elif hasattr(value, "data_ptr"):
        storage, start = value.untyped_storage(), value.data_ptr()
        first = storage.data_ptr() if hasattr(storage, "data_ptr") else start
        memory.add(first, first + storage.nbytes())
    elif isinstance(value, int) and value:
        memory.open = True


def run_kernel(
    ir: str,
    name: str,
    args: Sequence[object],
    threads: int,
    shared: int,
    grid: tuple[int, ...] = (1, 1, 1),
    tensor_maps: Sequence[object] = (),
    host_code: Sequence[object] = (),
    cluster: int = 1,
    ctas: int = 0,
    *,
    kinds: Sequence[str] = (),
    latency: str | None = None,
    seed: int | None = None,
) -> Report:
    """Run all programs of a grid. Arguments are arrays, or numbers as (LLVM type, value), or with `kinds` (of the
    signature) as they are given. `ctas`: how many to launch of a persistent kernel, whose CTAs run several programs."""
    latency = latency or knobs.simulator.latency or "random"
    if latency not in LATENCIES:
        known = ", ".join(LATENCIES)
        raise InvalidOption(f"no latency {latency!r} of the simulator", help=f"take one of {known}")
    memory = Global()
    kinds = kinds or [""] * len(args)
    given: list[tuple[str, Any]] = [
        x if isinstance(x, tuple) else argument(k, x) for k, x in zip(kinds, args, strict=True)
    ]
    for (kind, _), x in zip(given, args):
        if kind == "ptr":
            remember(memory, x)
    stride = threads if cluster == 1 else -(-threads // 128) * 128
    program = program_of(ir, name, cluster * stride)
    seed = knobs.simulator.seed or 0 if seed is None else seed
    make = partial(Machine, program, memory, shared, threads, cluster, latency)
    m = make(seed)
    m.tensor_maps = _maps(tensor_maps, host_code, [x for _, x in given])
    m.banks = Banks() if knobs.simulator.banks else None
    values = [_spread(m, kind, x) for kind, x in given]
    values += [full("i64", i, m.threads) for i in range(len(m.tensor_maps))]
    if ctas:
        extents = np.array(grid, np.int32)
        remember(memory, extents)
        values.append(full("i64", extents.ctypes.data, m.threads))
        grid = (min(ctas, int(np.prod(grid))), 1, 1)
    values = [_narrowed(type, x) for (type, _), x in zip(program.params, values, strict=True)]
    report = Report(counts=m.counts, written=m.written)
    with np.errstate(all="ignore"):
        _in_turns(m, lambda n: make(seed + n), values, grid)
    report.uninitialised = dict(m.shared.unknown)
    report.banks = m.banks.traffic if m.banks else {}
    if m.banks and report.render():
        print(report.render(), file=sys.stderr)
    elif report.uninitialised:
        warnings.warn(report.render(), RuntimeWarning, stacklevel=2)
    return report


def _in_turns(
    m: Machine, another: Callable[[int], Machine], values: list[np.ndarray], grid: tuple[int, ...]
) -> None:
    """Run programs one after another; those that may wait for others go on in turns when all have started."""
    free, waiting = [m], deque[tuple[Machine, Iterator[None]]]()
    for at in np.ndindex(*grid[::-1]):
        one = free.pop() if free else _like(m, another(len(waiting)))
        turns = one.run(values, tuple(at[::-1]), tuple(grid))
        if next(turns, one) is one:
            free.append(one)
        else:
            waiting.append((one, turns))
    idle, changes = 0, m.memory.changes
    while waiting:
        one, turns = waiting.popleft()
        if next(turns, one) is not one:
            waiting.append((one, turns))
        idle, changes = (idle + 1 if changes == m.memory.changes else 0), m.memory.changes
        if idle == MOST_TURNS:
            what = "every program waits, and none changes global memory any more"
            raise SimulatedHazard(what).note(f"at {one.place_of(one.line)}")


def _like(m: Machine, made: Machine) -> Machine:
    """Return a machine that counts where `m` does, and has its maps."""
    made.tensor_maps, made.banks = m.tensor_maps, m.banks
    made.counts, made.written, made.shared.unknown = m.counts, m.written, m.shared.unknown
    return made


def _maps(
    tensor_maps: Sequence[Any], host_code: Sequence[Any], given: list[Any]
) -> list[TensorMap]:
    known = evaluate(host_code, dict(enumerate(given))) if tensor_maps else []
    found: list[TensorMap] = []
    for elem, padding, box, swizzle, stored in tensor_maps:
        fields = [_field(kind, n, known) for kind, n in stored]
        found.append(TensorMap(elem, padding, box, swizzle, fields, given))
    return found


def _field(kind: str, number: int, known: Sequence[Interval]) -> tuple[str, int]:
    """Return a field of a map as an argument or a number; the host's code is evaluated."""
    if kind != "code":
        return kind, number
    value = known[number]
    assert value is not None
    return "const", value[0]


def _spread(m: Machine, kind: str, value: np.ndarray) -> np.ndarray:
    return full("i64" if kind == "ptr" else kind, value, m.threads)


def _narrowed(type: str, x: np.ndarray) -> np.ndarray:
    """Mask integers, which come with 64 bits, to the width of narrower parameters."""
    return mask_int(x, bits_of(type)) if type[0] == "i" and x.dtype == np.uint64 else x
