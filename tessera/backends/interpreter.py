"""Makes the NumPy interpreter a target: kernels are compiled to tile IR and executed from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tessera.backends.compiler import Backend, Options, Stage, make_options
from tessera.config import knobs
from tessera.dtypes import FP8
from tessera.ir import Module, PassManager, pack_locations
from tessera.ops import BreakpointOp
from tessera.ops.trace import TRACE_ADDED, TRACE_MODE
from tessera.passes import neutral_pipeline
from tessera.passes.checks.insert_checks import insert_checks
from tessera.passes.neutral.descriptors import lower_descriptor_rows
from tessera.passes.neutral.insert_trace import TRACED, insert_trace


class InterpreterBackend(Backend):
    """Target ("interpreter", "numpy", 1)."""

    name: ClassVar[str] = "interpreter"
    binary_ext: ClassVar[str] = "tir"

    def parse_options(self, options: Mapping[str, object]) -> Options:
        fp8 = tuple(t.name for t in FP8)
        defaults = {"backend_name": self.name, "warp_size": 1, "supported_fp8_dtypes": fp8}
        return make_options(self.target, options, defaults)

    def stages(self, options: Options) -> dict[str, Stage]:
        def tir(module: Module, metadata: dict[str, Any]) -> Module:
            # A checked launch reports values by their names in the source, a debugger shows them at their
            # lines: nothing is merged or removed.
            if options.debug == "check":
                passes = [lower_descriptor_rows, insert_checks]
            elif any(isinstance(op, BreakpointOp) for op in module.walk()):
                passes = [lower_descriptor_rows]
            else:
                passes = neutral_pipeline()
            if options.instrumentation_mode == TRACE_MODE and options.debug != "check":
                passes = [*passes, insert_trace.bind(cpu=True)]
            PassManager(passes, verify=knobs.compilation.verify).run(module)
            if "trace" in module.attrs:
                metadata |= {name: module.attrs[name] for name in TRACED}
                metadata["args"] = [*metadata["args"], *TRACE_ADDED]
            metadata["locations"] = pack_locations(module)
            return module

        return {"tir": tir}
