"""Lists what GPUs can do, by data sheet and measurements: for predictions of kernels, rooflines and costs of graphs.

Of the CPU at hand `explain/cpu_machine.py` measures the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates in units per second. `memory`: (bytes that fit, bytes a second) of each level, the largest last; `flops` of
    fp32 outside of products; `products`: operations of matrix products by bits of an operand; `launch`: seconds that
    an empty launch takes; `issue`: instructions of warps; `banks`: passes over shared memory."""

    name: str
    units: int  # SMs, or cores
    clock: float
    memory: tuple[tuple[float, float], ...]
    flops: float
    products: Mapping[str, float]
    launch: float
    ramp: float = 0.0  # seconds until all units are at work, and until the last is done
    written: tuple[
        tuple[float, float], ...
    ] = ()  # as `memory`, of bytes that are written, where these differ
    streamed: float = 0.0  # bytes a second that are written past caches

    @property
    def banks(self) -> float:
        return self.units * self.clock

    @property
    def issue(self) -> float:
        return SCHEDULERS * self.units * self.clock

    def bandwidth(self, size: float = float("inf")) -> float:
        """Return the bytes a second of the smallest level that holds `size` bytes; of memory without a size."""
        return next((rate for fits, rate in self.memory if size <= fits), self.memory[-1][1])

    def writing(self, size: float) -> float:
        """Return the bytes a second that are written to the smallest level that holds `size` bytes."""
        return next((rate for fits, rate in self.written if size <= fits), self.bandwidth(size))


# What the SMs of all these GPUs have (CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA, "wgmma").
SCHEDULERS = 4  # of warps, each with a part of the registers; one instruction a clock
BANK_BYTES = 128  # of shared memory that move in a clock
MUFU_LANES = 16  # exponentials, logarithms, roots, … in a clock
WARPGROUP = 4  # warps that issue one wgmma
WGMMA_COLUMNS = 256  # of the result of one wgmma, at most
MMA_ROW_BITS = 256  # of K in one instruction of an MMA
LEFT_REG32 = 4  # of a thread for a left operand of one wgmma: 64 rows of 256 bits, 128 threads
CP_ASYNC_BYTES = 4  # of the smallest cp.async of a thread
REGISTER_GRAIN = 8  # registers of a thread come in multiples
LATENCY = 700.0  # clocks from a load to its data, from memory under load
SHARE = 0.85  # of the peak of matrix products that kernels reach
L2_BYTES = 48  # that an SM gets from L2 in a clock


def _gpu(
    name: str, units: int, clock: float, dense: float, memory: float, l2: float, fma: int = 128
) -> Machine:  # fmt: skip
    """`dense`: operations of bf16 products of one SM in one clock. Rates are what kernels reach, not the peak."""
    of_sm = units * clock
    bf16 = SHARE * of_sm * dense
    products = {
        "fp8": 2 * bf16, "int8": 2 * bf16, "fp16": bf16, "bf16": bf16, "tf32": bf16 / 2, "fp32": of_sm * fma * 2,
        "fp64": bf16 / 16,
    }  # fmt: skip
    levels = ((l2, L2_BYTES * of_sm), (float("inf"), memory))
    return Machine(name, units, clock, levels, of_sm * fma * 2, products, 2.5e-6, 3e-6)


# Clocks under load, and memory as copies reach it (about 0.9 of the data sheet).
GPUS = {
    "H200": _gpu("NVIDIA H200", 132, 1.755e9, 4096, 4.3e12, 40e6),
    "H100": _gpu("NVIDIA H100 SXM", 132, 1.755e9, 4096, 3.0e12, 40e6),
    "A100": _gpu("NVIDIA A100", 108, 1.41e9, 2048, 1.75e12, 30e6, 64),
    "3090": _gpu("NVIDIA RTX 3090", 82, 1.70e9, 512, 0.85e12, 5e6),
    "4090": _gpu("NVIDIA RTX 4090", 128, 2.52e9, 512, 0.92e12, 60e6),
    "B200": _gpu("NVIDIA B200", 148, 1.85e9, 8192, 7.0e12, 100e6),
}
BY_CAPABILITY = {
    80: "A100",
    86: "3090",
    87: "3090",
    89: "4090",
    90: "H200",
    100: "B200",
    120: "4090",
}


def gpu(capability: int, device: str = "") -> Machine:
    """Return the machine for a device's name, else the usual one of a compute capability."""
    for name, machine in GPUS.items():
        if re.search(rf"\b{name}\b", device):
            return machine
    known = [c for c in BY_CAPABILITY if c <= capability]
    return GPUS[BY_CAPABILITY[max(known, default=80)]]
