"""Defines the target of the simulator: an NVIDIA GPU whose code ends as LLVM IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tessera.backends.compiler import Options, Stage
from tessera.backends.nvidia.backend import NvidiaBackend
from tessera.config import knobs


class SimtBackend(NvidiaBackend):
    """NVIDIA's back end without the stages after LLVM IR. Target ("simt", 90, 32)."""

    name: ClassVar[str] = "simt"
    binary_ext: ClassVar[str] = "llir"

    def parse_options(self, options: Mapping[str, object]) -> Options:
        ours = {"backend_name": "cuda", "num_ctas": knobs.simulator.num_ctas}
        return super().parse_options({**ours, **options})

    def stages(self, options: Options) -> dict[str, Stage]:
        everything = super().stages(options)
        return {name: everything[name] for name in ("tir", "gir", "llir")}

    def toolchain(self) -> str:
        return "simt"
