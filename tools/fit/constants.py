"""The constants of the compiler that were fitted: where they are, which values were tried, and what measures them.

A constant that follows from a manual or from arithmetic has the reason beside it and no row here.
`tests/unit/test_fit.py` holds the rows and the comments of the code together: a comment that names `tools/fit` has a
row, and a row its comment.
"""

from __future__ import annotations

from dataclasses import dataclass

CPU = ("benchmarks/cpu.py", "--threads", "1")
GPU = ("benchmarks/gpu.py",)
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Fit:
    """`name` of `module` was chosen among `values` by the benchmark `command`, of which `rows` are looked at (a pattern
    for its `--only`). `needs` says on what machine."""

    module: str
    name: str
    values: tuple[float, ...]
    command: tuple[str, ...]
    rows: str
    needs: str = "a CPU"

    @property
    def key(self) -> str:
        return f"{self.module}.{self.name}"


def _cpu(module: str, name: str, values: tuple[float, ...], rows: str) -> Fit:
    return Fit(f"tessera.backends.cpu.{module}", name, values, CPU, rows)


def _gpu(module: str, name: str, values: tuple[float, ...], rows: str) -> Fit:
    return Fit(f"tessera.{module}", name, values, GPU, rows, "an H200")


FITS = (
    _cpu("effects", "STREAM_BYTES", (6 * MIB, 12 * MIB, 24 * MIB, 48 * MIB, 1 << 40), "add|copy|dropout"),
    _cpu("effects", "LIGHT", (1.0, 2.0, 4.0, 8.0), "add|copy|dropout|gelu"),
    _cpu("fusion", "KEEP_SHARED", (1.0, 2.0, 4.0, 8.0), "softmax|norm|entropy"),
    _cpu("fusion", "KEEP_BROADCAST", (1.0, 2.0, 4.0), "softmax|norm"),
    _cpu("fusion", "KEEP_CAPTURED", (0.5, 1.0, 2.0), "attention|matmul"),
    _cpu("row_prefetch", "NEAR", (2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB), "softmax|norm"),
    _cpu("blocked_iterations", "ITERATIONS", (4, 8, 16, 32), "norm"),
    _cpu("blocked_iterations", "VECTORS", (1, 2, 4, 8), "norm"),
    _cpu("loops", "UNROLL", (2, 4, 8, 16), "add|softmax|norm"),
    _cpu("reduce", "ACCUMULATORS", (1, 2, 4, 8), "softmax|norm|entropy"),
    _cpu("pool_native", "SPINS", (0, 100, 1000, 10000), "add|softmax"),
    _cpu("pool_native", "CHUNKS_PER_THREAD", (1, 2, 4, 8, 16), "add|softmax|attention"),
    _gpu("layout.convert", "BARRIER_COST", (6.0, 12.0, 24.0, 48.0), "softmax|norm|attention"),
    _gpu("passes.gpu_layout.assign", "DIRECT_STORE_BYTES", (0, 2048, 4096, 8192), "matmul|attention"),
    _gpu("passes.gpu_layout.assign", "RECOMPUTE_DEPTH", (0, 2, 4, 8), "softmax|norm|attention"),
    _gpu("passes.gpu_layout.warpgroup", "ACC_REG32", (160, 192, 208, 224), "matmul|attention"),
    _gpu("passes.gpu_mma.async_mma", "HOISTED_REG32", (160, 192, 208, 224), "attention"),
    _gpu("passes.gpu_loops.chains", "CHAINED_REG32", (160, 192, 208, 224), "attention"),
    _gpu("passes.gpu_loops.plan", "PING_PONG_REG32", (64, 96, 128, 160), "attention"),
    _gpu("passes.gpu_loops.warp_roles", "WORK", (16, 24, 32, 40), "matmul|attention"),
    _gpu("passes.gpu_loops.warp_roles", "LARGE", (64, 96, 128), "matmul|attention"),
    _gpu("passes.gpu_loops.warp_roles", "PRODUCER", (24, 32, 40, 56), "matmul|attention"),
    _gpu("backends.nvidia.backend", "FEW_BYTES", (0, 8, 16, 32), "attention|norm"),
    _gpu("backends.nvidia.backend", "NEARLY", (0.8, 0.85, 0.9), "attention|norm"),
)  # fmt: skip
