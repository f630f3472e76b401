"""Defines the native CPU back end: tile IR → LLVM IR → an object that the runtime loads and runs over the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from tessera.backends.compiler import Backend, GPUTarget, Options, Stage, make_options
from tessera.backends.cpu.exchange_partners import exchange_partners
from tessera.backends.cpu.function import lower_module
from tessera.backends.cpu.host import prints_in_order
from tessera.backends.cpu.induction import scalarise_inductions
from tessera.backends.cpu.narrow_accumulators import narrow_accumulators
from tessera.backends.cpu.narrow_tiles import narrow_tiles
from tessera.backends.cpu.scan_positions import scan_positions
from tessera.backends.cpu.target import resolve
from tessera.backends.cpu.waiting import may_wait
from tessera.backends.llvm.binding import Target, optimise, version
from tessera.config import knobs
from tessera.dtypes import FP8
from tessera.ir import Module, Pass, PassManager
from tessera.ir.applications import apply
from tessera.ops.memory import SHADOW_SITES, SHADOW_UNIT
from tessera.ops.trace import TRACE_MODE
from tessera.passes import CLEAN_UP, neutral_pipeline
from tessera.passes.checks.insert_checks import insert_checks
from tessera.passes.neutral.descriptors import lower_descriptor_rows, lower_descriptors
from tessera.passes.neutral.insert_trace import TRACED, insert_trace

# The lowering emits vectors and hoists by itself: LLVM only turns stack slots into registers and cleans up.
LLVM_PASSES = "sroa,instcombine,simplifycfg"


def cpu_pipeline(checked: bool = False, traced: bool = False) -> list[Pass]:
    """Return the passes between the front end and the lowering to loops."""
    last: list[Pass] = [insert_trace.bind(cpu=True)] if traced else []
    if checked:  # the report has values' names in the source, and where they are computed
        return [lower_descriptor_rows, insert_checks, *CLEAN_UP]
    return [
        lower_descriptors.bind(cpu=True),
        *neutral_pipeline(),
        narrow_tiles,  # before anything else that loops over tiles is decided
        exchange_partners,
        scan_positions,
        narrow_accumulators,  # tiles that need not be carried at all
        scalarise_inductions,  # after LICM, which shows what is invariant in a loop
        *CLEAN_UP,
        *last,
    ]


class CpuBackend(Backend):
    """Target ("cpu", "native" | "avx2" | "avx512" | "generic", 1)."""

    name: ClassVar[str] = "cpu"
    binary_ext: ClassVar[str] = "object"
    idle_options: ClassVar[tuple[str, ...]] = ("num_warps", "num_stages", "num_ctas", "maxnreg")

    def __init__(self, target: GPUTarget):
        super().__init__(target)
        self.machine, self.facts = resolve(target.arch)

    def parse_options(self, options: Mapping[str, object]) -> Options:
        defaults = {
            "backend_name": self.name, "warp_size": 1, "supported_fp8_dtypes": tuple(t.name for t in FP8)
        }  # fmt: skip
        return make_options(self.target, options, defaults)

    def toolchain(self) -> str:
        return f"{version()}/{self.machine.key}/{self.facts.name}"

    def stages(self, options: Options) -> dict[str, Stage]:
        return {
            "tir": lambda module, metadata: self._tir(module, metadata, options),
            "llir": lambda module, metadata: self._llir(module, metadata, options),
            "object": self._object,
        }

    def _tir(self, module: Module, metadata: dict[str, Any], options: Options) -> Module:
        checked = options.debug == "check"
        traced = options.instrumentation_mode == TRACE_MODE and not checked
        passes = cpu_pipeline(checked, traced)
        PassManager(passes, knobs.compilation.verify).run(module)
        kept = [
            name for name in (*TRACED, SHADOW_SITES, SHADOW_UNIT, "remarks") if name in module.attrs
        ]
        metadata |= {name: module.attrs[name] for name in kept}
        return module

    def _llir(self, module: Module, metadata: dict[str, Any], options: Options) -> str:
        lowered = lower_module(
            module, self.facts, options.enable_fp_fusion, overlap=options.may_overlap,
            line_info=not knobs.compilation.disable_line_info,
        )  # fmt: skip
        metadata["name"] = lowered.name
        metadata["args"] = lowered.args
        metadata["shared"] = 0
        if prints_in_order(module) or SHADOW_UNIT in module.attrs:
            metadata["in_order"] = True
        metadata["scratch_bytes"] = lowered.scratch_bytes
        metadata["alone_up_to"] = lowered.alone_up_to
        metadata["may_wait"] = may_wait(module)
        metadata["assertions"] = lowered.assertions
        if lowered.remarks:
            metadata["remarks"] = (*metadata.get("remarks", ()), *lowered.remarks)
        metadata["assumed_disjoint"] = lowered.assumed_disjoint
        if options.debug == "check":
            metadata["checks"] = lowered.checks
        return lowered.text

    def _object(self, text: str, metadata: dict[str, Any]) -> bytes:
        return compile_object(text, self.machine)

    def derived(self, extension: str, asm: Mapping[str, Any]) -> str | None:
        """Return the assembly of the machine for `asm`."""
        if extension not in ("asm", "s"):
            return None
        return optimise(asm["llir"], self.machine, LLVM_PASSES).to_assembly()


def compile_object(text: str, machine: Target) -> bytes:
    """Compile LLVM IR text to a relocatable object."""
    passes = LLVM_PASSES if apply("llvm-passes") else ""
    return optimise(text, replace(machine, opt=2), passes).to_object()
