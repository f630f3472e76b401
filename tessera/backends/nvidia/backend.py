"""Compiles for NVIDIA GPUs of compute capability 8.0 and newer: tile IR → GPU IR → LLVM IR → PTX → cubin."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from tessera.analysis.intervals import NEVER
from tessera.analysis.machines import REGISTER_GRAIN
from tessera.backends.compiler import Backend, GPUTarget, Options, Stage, make_options
from tessera.backends.gpu.module import lower_module
from tessera.backends.llvm import binding
from tessera.backends.nvidia import assembler, mbarrier, ptxas, tensor, trace, warp_roles, wgmma
from tessera.backends.nvidia.emit import RESIDENT_THREADS, NvidiaTarget
from tessera.backends.nvidia.ptxas_faults import avoid_faults
from tessera.backends.nvidia.target import facts_for, oldest_ptx
from tessera.config import knobs
from tessera.dtypes import FP8, pointer_type
from tessera.errors import InvalidOption, LaunchError, PTXASError, ToolNotFound
from tessera.ir import Module, Pass, PassManager
from tessera.ir.applications import apply
from tessera.ops.trace import TRACE_MODE
from tessera.passes import neutral_pipeline
from tessera.passes.checks.resources import check_resources
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_movement.tensor_maps import select_tensor_maps
from tessera.passes.gpu_pipeline import gpu_passes
from tessera.passes.gpu_scheduling.clusters import partition_cluster
from tessera.passes.neutral.aligned_extents import aligned_extents
from tessera.passes.neutral.descriptors import lower_descriptors
from tessera.passes.neutral.insert_trace import TRACED, insert_trace
from tessera.passes.neutral.peel import peel_first
from tessera.passes.neutral.unroll import unroll

# Our own passes hoist, merge and simplify. On measured kernels LLVM's middle end found nothing more and only took
# time, except for unused addresses of registers inside a vector, which are cheaper to remove than to select.
MIDDLE_END = "dce"
_REGISTERED = (
    mbarrier,
    tensor,
    trace,
    warp_roles,
    wgmma,
)  # imported for the lowerings it registers
HANDOVER = re.compile(r"setmaxnreg[^;]*;")
MATRIX = re.compile(r"\b(wgmma|mma\.sync)")
CTAS = re.compile(r"\.maxntid (\d+)\s+\.minnctapersm (\d+)")
LABELS = re.compile(r"^(\$L\w+):|\bbra(?:\.uni)?\s+(\$L\w+);", re.M)
CALLS = re.compile(r"^\s*call\.", re.M)
TOO_FEW_REGISTERS = "Insufficient registers"  # ptxas: one instruction needs more than a thread has
FEW_BYTES = 16  # bytes of registers that each thread may spill for the sake of another CTA on the SM (tools/fit)
# The same for up to 12 warps on an SM in CTAs of one or two: each quarter of the SM then holds three of them for two,
# which makes up for eight registers that are moved once in an iteration.
FEW_SMALL = 32
MOST_THREADS = 2048  # of an SM, each with 32 registers
# Fewer CTAs are asked for until registers do not spill, by the threads that an SM then holds.
FEWER_THREADS = (*RESIDENT_THREADS, 384)
# With up to so many threads on an SM, a share of the instructions may move spilled registers: fewer threads would cost
# more. Matrix products are left out, which hide latency by themselves, and straight-line code may move less: it is
# long where it spills so much, and waits for every move.
SPILLING_THREADS, SPILLING, SPILLING_STRAIGHT = 1024, 0.03, 0.01
# The share of the registers that ptxas takes without a limit; with this many it mostly spills nothing (tools/fit).
NEARLY = 0.85
SPARING = 0.8  # the same where nothing at all may spill
# The same for CTAs of one or two warps, which hide little latency: an SM is to hold 16 or 12 warps of them.
SMALL_CTA, SPARING_SMALL = 64, 0.65
# The same for loops without matrix products, which get registers to read ahead: an SM is to hold twice as many of them.
# Of 38 such kernels on an H200, the geometric mean was 6 % faster so, and none more than 3 % slower. Those that
# gained keep 0.8 of the registers or more; a recurrence over steps, which kept 64 of 87 (0.74), took 24 % longer.
SPARING_LOOPS = 0.75
OLDEST = 80  # the first compute capability, times ten, that is supported
MAP_BYTES = 128  # bytes of a CUtensorMap
PTX_ISA = 86  # has all instructions that are emitted; newer assemblers read it


class NvidiaBackend(Backend):
    """Target ("cuda", 90, 32)."""

    name: ClassVar[str] = "cuda"
    binary_ext: ClassVar[str] = "cubin"

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        if not str(target.arch).isdecimal():
            raise LaunchError(
                f"the architecture {target.arch!r} of a CUDA target is no number",
                help='write the compute capability without a point, as in `GPUTarget("cuda", 90, 32)`',
            )
        self.capability = int(target.arch)
        if self.capability < OLDEST:
            raise LaunchError(
                f"compute capability {self.capability} is not supported; the oldest is {OLDEST}"
            )

    def parse_options(self, options: Mapping[str, object]) -> Options:
        defaults: dict[str, Any] = {
            "backend_name": self.name,
            # Software converts most of them.
            "supported_fp8_dtypes": tuple(sorted(t.name for t in FP8)),
            "deprecated_fp8_dot_operand_dtypes": ("fp8e4b15",) if self.capability >= 90 else (),
            "default_dot_input_precision": "tf32",
            "max_num_imprecise_acc_default": 2**30 if self.capability == 90 else 0,
            "enable_fp_fusion": knobs.language.default_fp_fusion,
        }
        if knobs.runtime.override_arch is not None:
            defaults["arch"] = knobs.runtime.override_arch
        found = make_options(self.target, options, defaults)
        if found.num_ctas > 1 and self.capability < 90:
            raise LaunchError(
                "num_ctas > 1 requires NVIDIA SM90+ (Hopper). "
                f"Current target is sm_{self.capability}. This configuration will fail."
            )
        return found

    def stages(self, options: Options) -> dict[str, Stage]:
        cc = self._capability(options)
        facts = enabled_facts(facts_for(cc))
        line_info = not knobs.compilation.disable_line_info

        def tir(module: Module, metadata: dict[str, Any]) -> Module:
            module.attrs |= self.attributes(options)
            return _run(self.passes("tir", options), module, metadata, "tir")

        def gir(module: Module, metadata: dict[str, Any]) -> Module:
            _run(self.passes("gir", options), module, metadata, "gir")
            metadata |= launch_facts(module, options.num_warps)
            return module

        def llir(module: Module, metadata: dict[str, Any]) -> str:
            limit = f' "nvvm.maxnreg"="{options.maxnreg}"' if options.maxnreg else ""
            return lower_module(
                module, NvidiaTarget(cc, facts, module.attrs.get("cluster", 1)),
                fusion=options.enable_fp_fusion, attributes=limit, line_info=line_info,
            )  # fmt: skip

        def ptx(text: str, metadata: dict[str, Any]) -> str:
            isa = ptx_version(options, cc)
            built = binding.optimise(text, binding.nvptx(architecture(cc), isa), MIDDLE_END)
            found = avoid_faults(built.to_assembly(), _release(architecture(cc)))
            if knobs.nvidia.dump_nvptx:
                print(found, file=sys.stderr)
            timings = [(k, v * 1e-3) for k, v in built.timings.items()]
            metadata.setdefault("timings", {})["ptx"] = timings
            return found

        def cubin(text: str, metadata: dict[str, Any]) -> bytes:
            extra = shlex.split(options.ptx_options or "")
            if not options.enable_fp_fusion:
                extra.append("--fmad=false")
            done, occupancy_met = assemble_with_room(text, architecture(cc), extra, line_info)
            if not options.maxnreg and "shared" in metadata:
                again = partial(
                    assembler.assemble, arch=architecture(cc), options=extra, line_info=line_info
                )
                done = raise_occupancy(text, done, metadata["shared"], facts, again)
            metadata["registers"], metadata["spills"] = done.registers, done.spill_stores
            if not occupancy_met and "precondition" in metadata:
                # This variant is faster only with as many CTAs on an SM as it asked for.
                metadata["precondition"] = NEVER
            if done.warnings:
                metadata["remarks"] = (*metadata.get("remarks", ()), *done.warnings)
            return done.cubin

        return {"tir": tir, "gir": gir, "llir": llir, "ptx": ptx, "cubin": cubin}

    def attributes(self, options: Options) -> dict[str, Any]:
        """Return the attributes of a module from the front end: the options that passes read."""
        return {
            "num_warps": options.num_warps,
            "num_ctas": options.num_ctas,
            "num_stages": options.num_stages,
            "target": f"cuda:{self._capability(options)}",
        }

    def passes(self, stage: Literal["tir", "gir"], options: Options) -> list[Pass]:
        """Return the passes of a stage, in order."""
        facts = enabled_facts(facts_for(self._capability(options)))
        if stage == "gir":
            found = gpu_passes(facts, options.pointer_maps, options.persistent, options.no_alias)
            return [*found, insert_trace] if options.instrumentation_mode == TRACE_MODE else found
        first: list[Pass] = (
            [partition_cluster] if facts.has_clusters and options.num_ctas > 1 else []
        )
        if facts.has_tma:
            first.append(select_tensor_maps.bind(stores=options.tensor_stores))
        extents = aligned_extents.bind(arguments=not facts.has_tma)
        return [*first, extents, lower_descriptors, peel_first, unroll, *neutral_pipeline()]

    def check_fit(self, make_ir: Callable[[], object], options: Options) -> None:
        module = self.stages(options)["tir"](make_ir(), {})
        check_resources.bind(facts=facts_for(self._capability(options)), pruning=True)(module)

    def _capability(self, options: Options) -> int:
        """Return the compute capability of the option `arch` ("sm90"), else of the target."""
        if not options.arch:
            return self.capability
        found = re.fullmatch(r"(?:sm_?)?(\d+)[af]?", str(options.arch))
        if found is None:
            raise InvalidOption(f'arch must be like "sm90", got {options.arch!r}')
        return int(found[1])

    def toolchain(self) -> str:
        return f"{binding.version()} {assembler.identity(architecture(self.capability))}"

    def derived(self, extension: str, asm: Mapping[str, Any]) -> str | None:
        """Return the disassembled machine code for `kernel.asm["sass"]`."""
        return ptxas.disassemble(asm["cubin"]) if extension == "sass" else None


def _release(arch: str) -> str:
    """Return the release of the assembler, or "" where there is none."""
    try:
        return assembler.release(arch)
    except ToolNotFound:
        return ""


def enabled_facts(facts: GpuFacts) -> GpuFacts:
    """Return the facts without the features that are switched off by name."""
    return replace(
        facts,
        has_ldmatrix=facts.has_ldmatrix and apply("ldmatrix"),
        has_stmatrix=facts.has_stmatrix and apply("stmatrix"),
        warp_exchanges=facts.warp_exchanges and apply("warp-exchanges"),
    )


def launch_facts(module: Module, num_warps: int) -> dict[str, Any]:
    """Return what a launcher must know of a module of GPU IR, as metadata of its kernel."""
    attrs, args = module.attrs, argument_kinds(module)
    found: dict[str, Any] = {
        "shared": attrs.get("shared", 0), "args": args, "cluster_dims": (attrs.get("cluster", 1), 1, 1),
        "warps": num_warps + attrs.get("producer_warps", 0),
    }  # fmt: skip
    if "tensor_maps" in attrs:
        maps = found["tensor_maps"] = attrs["tensor_maps"]
        args += ["memory"] * len(maps)
    if "tensor_maps" in attrs or "precondition" in attrs:
        # This makes other launchers (TorchInductor's) leave the launch to ours, which encodes the maps and evaluates
        # the precondition.
        found["global_scratch_size"] = MAP_BYTES * max(1, len(attrs.get("tensor_maps", ())))
    if attrs.get("persistent"):
        found["resident_ctas"] = attrs.get("resident_ctas", 1)
        args.append("memory")
    return found | {
        name: attrs[name]
        for name in ("host_code", "precondition", "edges", "assumes_no_alias", "remarks", *TRACED)
        if name in attrs
    }


def assemble_with_room(
    ptx: str, arch: str, options: list[str], line_info: bool
) -> tuple[ptxas.Assembled, bool]:
    """Assemble for as many CTAs on an SM as `ptx` asks for, or for the most whose registers spill little. Return also
    whether that is as many as it asked for."""
    asked = ptx
    while True:
        looser = fewer_ctas(ptx)
        try:
            done = assembler.assemble(ptx, arch, options, line_info)
        except PTXASError as error:
            if TOO_FEW_REGISTERS not in str(error) or looser == ptx:
                raise
        else:
            if looser == ptx or _spills_little(done, ptx):
                return done, ptx == asked
        ptx = looser


def _spills_little(done: ptxas.Assembled, ptx: str) -> bool:
    """Whether registers do not spill, or less than a CTA less on the SM would cost."""
    found = CTAS.search(ptx)
    if not done.spill_stores or found is None or MATRIX.search(ptx):
        return not done.spill_stores
    moves = (done.spill_stores + done.spill_loads) // 4
    little = moves <= (SPILLING if _loops(ptx) else SPILLING_STRAIGHT) * ptx.count(";")
    return little and int(found[1]) * int(found[2]) <= SPILLING_THREADS and apply("spill-little")


def _loops(ptx: str) -> bool:
    """Whether a branch goes back to a label above it."""
    above: set[str] = set()
    for label, target in LABELS.findall(ptx):
        if target and target in above:
            return True
        above.add(label)
    return False


def fewer_ctas(ptx: str) -> str:
    """Return `ptx` for the next lower number of CTAs that an SM must have registers for."""
    asked = CTAS.search(ptx)
    if asked is None or asked[2] == "1":
        return ptx
    threads, ctas = int(asked[1]), int(asked[2])
    fewer = [n for n in (resident // threads for resident in FEWER_THREADS) if n < ctas]
    ptx = with_ctas(ptx, threads, max([1, *fewer]))
    # A CTA that is alone on an SM has enough registers at its start.
    return ptx if max([1, *fewer]) > 1 else HANDOVER.sub("", ptx)


def with_ctas(ptx: str, threads: int, ctas: int) -> str:
    return CTAS.sub(f".maxntid {threads}\n.minnctapersm {ctas}", ptx)


def raise_occupancy(
    ptx: str, done: ptxas.Assembled, shared: int, facts: GpuFacts, again: Callable[[str], ptxas.Assembled]
) -> ptxas.Assembled:  # fmt: skip
    """Return the result `done` of assembling `ptx`, or that of assembling it again (`again`) with a few registers less,
    if an SM can then hold one more CTA, or, of CTAs of one or two warps, as many as have 512 threads. Programs with
    dots may take all registers of an SM, loops those of 512 threads, of which ptxas takes more than it needs. What
    straight-line code takes beyond 32 for calls, most of which are behind branches, is spilled there."""
    asked = CTAS.search(ptx)
    if asked is None:
        return done
    loops = _reads_ahead(asked, ptx)
    calls = not loops and _has_calls(asked, ptx)
    if not (loops or calls or (asked[2] == "1" and int(asked[1]) < RESIDENT_THREADS[-1])):
        return done
    threads = int(asked[1])
    ctas = facts.register_file // (threads * -(-done.registers // REGISTER_GRAIN) * REGISTER_GRAIN)
    most = facts.ctas_that_fit(shared)
    tries = {RESIDENT_THREADS[1] // threads: SPARING_LOOPS} if loops else {ctas + 1: SPARING}
    if calls:
        tries = {MOST_THREADS // threads: SPARING}
    if threads <= SMALL_CTA:
        small = [min(most, n // threads) for n in FEWER_THREADS[-2:]]
        tries = dict.fromkeys(small, SPARING_SMALL) | tries
    for wanted, share in tries.items():
        fewer = facts.register_file // (threads * wanted) // REGISTER_GRAIN * REGISTER_GRAIN
        if not ctas < wanted <= most or fewer < share * done.registers:
            continue
        if HANDOVER.search(ptx) or not apply("raise-occupancy"):
            return done
        try:
            found = again(with_ctas(ptx, threads, wanted))
        except PTXASError:  # there are too few registers for so many CTAs
            continue
        few = threads <= SMALL_CTA or (not loops and fewer >= NEARLY * done.registers)
        spilled = FEW_BYTES if few else 0
        if threads <= SMALL_CTA and wanted * threads <= FEWER_THREADS[-1]:
            spilled = FEW_SMALL
        if found.spill_stores <= spilled and not found.warnings:
            return found
    return done


def _reads_ahead(asked: re.Match[str], ptx: str) -> bool:
    """Whether code without matrix products asks for the registers that loops get, and not for CTAs of one or two warps:
    these have little else than their own registers to hide latency."""
    threads = int(asked[1])
    wanted = max(1, RESIDENT_THREADS[-1] // threads)
    return threads > SMALL_CTA and int(asked[2]) == wanted and not MATRIX.search(ptx)


def _has_calls(asked: re.Match[str], ptx: str) -> bool:
    """Whether code asks for as many CTAs as straight-line code does, and calls functions."""
    return int(asked[2]) == RESIDENT_THREADS[0] // int(asked[1]) and bool(CALLS.search(ptx))


def architecture(cc: int) -> str:
    """Return a target's name for LLVM and ptxas; `sm_90a` for Hopper, since wgmma and setmaxnreg need it."""
    return f"sm_{cc}a" if cc == 90 else f"sm_{cc}"


def ptx_version(options: Options, cc: int) -> int:
    """Return the PTX ISA (major * 10 + minor) to write. LLVM ends the process if the target is newer."""
    oldest = oldest_ptx(cc)
    if options.ptx_version is not None and options.ptx_version < oldest:
        raise InvalidOption(
            f"ptx_version {options.ptx_version} does not have the target {architecture(cc)}",
            help=f"give {oldest} or more, or leave the option out",
        )
    newest = assembler.newest_ptx(architecture(cc))
    return options.ptx_version or max(oldest, min(PTX_ISA, newest))


def argument_kinds(module: Module) -> list[str]:
    """Return the kind of each launch argument in order: "ptr", or the signature name of a scalar type."""
    kernel = next(f for f in module.body if f.attrs["kernel"])
    args = kernel.regions[0].args
    return ["ptr" if isinstance(a.type, pointer_type) else a.type.short for a in args]


def _run(passes: Any, module: Module, metadata: dict[str, Any], stage: str) -> Module:
    manager = PassManager(passes, verify=knobs.compilation.verify)
    manager.run(module)
    metadata.setdefault("timings", {})[stage] = manager.timings
    return module
