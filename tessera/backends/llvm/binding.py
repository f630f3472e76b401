"""Wraps llvmlite, which no other file imports: parses LLVM IR text, runs passes, emits assembly or objects, loads
objects.

llvmlite is imported at the first use (the import takes 30 ms or more). Every module lives in an LLVM context of its
own, so that nothing accumulates in a process that compiles for days. llvmlite holds one lock around each LLVM call:
several threads may compile, but one LLVM stage runs at a time.

    module = optimise("define i64 @f(i64 %x) { %y = add i64 %x, 1  ret i64 %y }", host())
    loaded = link_object(module.to_object(), ["f"])
    ctypes.CFUNCTYPE(c_int64, c_int64)(loaded["f"])(41)  # 42

Trap: if LLVM cannot select an instruction for an intrinsic, it ends the process. Emit only intrinsics known to work.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import platform
import re
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from tessera.backends.process_singleton import process_singleton
from tessera.config import knobs
from tessera.config.forking import locks, undivided
from tessera.errors import InternalError, InvalidOption

# `sroa` turns the allocas of loop-carried values into phis; the other two clean up after it. More passes
# do not speed up code that our own passes have already vectorised and hoisted.
DEFAULT_PASSES = "sroa,instcombine,simplifycfg"

PASSES: Mapping[str, str] = {
    "sroa": "add_sroa_pass",
    "instcombine": "add_instruction_combine_pass",
    "simplifycfg": "add_simplify_cfg_pass",
    "gvn": "add_new_gvn_pass",
    "dce": "add_dead_code_elimination_pass",
    "dse": "add_dead_store_elimination_pass",
    "globaldce": "add_global_dead_code_eliminate_pass",
    "inline": "add_always_inliner_pass",
    "loop-rotate": "add_loop_rotate_pass",
    "loop-simplify": "add_loop_simplify_pass",
    "lsr": "add_loop_strength_reduce_pass",
    "reassociate": "add_reassociate_pass",
    "sink": "add_sinking_pass",
    "sccp": "add_sccp_pass",
    "mem2reg": "add_sroa_pass",
}


class LLVMError(InternalError, RuntimeError):
    """LLVM rejected our IR. `ir` is the module's text, `line` the line in question (0: unknown)."""

    code = "llvm"

    def __init__(self, message: str, ir: str = "", line: int = 0) -> None:
        self.ir, self.line = ir, line
        lines = ir.splitlines()
        if 0 < line <= len(lines):
            first = max(0, line - 3)
            window = lines[first : line + 2]
            shown = [
                f"{'>' if first + i + 1 == line else ' '} {first + i + 1:5} | {s[:200]}"
                for i, s in enumerate(window)
            ]
            message = "\n".join([message, *shown])
        super().__init__(message)


@process_singleton
def _llvm() -> Any:
    """llvmlite.binding, imported and initialised once."""
    module = importlib.import_module("llvmlite.binding")
    if module.llvm_version_info >= (22,):
        # In the GPU code generators these two take 30 times as long as everything else on kernels with hundreds of
        # addresses, and the assembler makes the same code without them. Other targets do not run them.
        module.set_option("tessera", "-opt-disable=slsr,nary-reassociate")
    # This pass, which splits copies of data just stored in parts, ends the process if the load is a masked one
    # that turned out to need no mask (an assertion: "unknown LocationSize"). Our code has few such copies.
    module.set_option("tessera", "-x86-disable-avoid-SFB")
    module.initialize_all_targets()
    module.initialize_all_asmprinters()
    module.initialize_native_asmparser()
    locks.append(module.ffi.lib._lock)  # llvmlite's own, which disposing of an object takes
    return module


def version() -> str:
    """Return llvmlite's and LLVM's version, for cache keys. Does not load the library if its metadata has the
    version."""
    package = importlib.import_module("llvmlite")
    return f"llvmlite-{package.__version__}"


# --- targets ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Target:
    """What to generate code for; equal targets share one target machine. `key` goes into cache keys."""

    triple: str
    cpu: str
    features: str = ""
    reloc: str = "default"
    codemodel: str = "default"
    opt: int = 3

    @property
    def key(self) -> str:
        return f"{self.triple}/{self.cpu}/{self.features}/{self.reloc}/{self.codemodel}/{self.opt}"


def nvptx(arch: str = "sm_90a", ptx: int = 86) -> Target:
    """NVIDIA: `arch` as ptxas spells it, `ptx` = ISA version × 10."""
    return Target("nvptx64-nvidia-cuda", arch, f"+ptx{ptx}")


def x86(cpu: str = "x86-64-v3", features: str = "") -> Target:
    """A Linux x86-64 machine; position-independent code with near constants, as the loader links it."""
    return Target("x86_64-unknown-linux-gnu", cpu, features, "pic", "small")


def aarch64(cpu: str = "generic", features: str = "+neon") -> Target:
    return Target("aarch64-unknown-linux-gnu", cpu, features, "pic", "small")


X86_LEVELS = {
    "baseline": "x86-64-v2", "avx2": "x86-64-v3", "avx512": "x86-64-v4", "amx": "sapphirerapids",
}  # fmt: skip


def host(isa: str | None = None) -> Target:
    """This machine. `isa` (default: the knob cpu.isa): native, baseline, avx2, avx512 or an LLVM CPU name."""
    isa = isa or knobs.cpu.isa or "native"
    return _host(isa, str(knobs.cpu.hide))


@lru_cache
def _host(isa: str, hidden: str) -> Target:
    llvm = _llvm()
    triple = llvm.get_process_triple()
    known, has = llvm.get_host_cpu_features(), _features(hidden)
    if isa == "native":
        features = ",".join(("+" if name in has else "-") + name for name in sorted(known))
        return Target(triple, llvm.get_host_cpu_name(), features, "pic", "small")
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    cpu = (
        X86_LEVELS.get(isa, isa) if is_x86 else ("generic" if isa in (*X86_LEVELS, "neon") else isa)
    )
    if cpu != isa or not is_x86:
        return Target(triple, cpu, "", "pic", "small")
    _check_cpu(triple, cpu)
    lacking = ",".join(f"-{name}" for name in sorted(known) if name not in has)
    return Target(triple, cpu, lacking, "pic", "small")  # tuned for that processor, run on this one


PROBE = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.Target.from_triple(sys.argv[1]).create_target_machine(cpu=sys.argv[2])
"""


def _check_cpu(triple: str, cpu: str) -> None:
    """Raise InvalidOption for a name unknown to LLVM, which would print a message and end the process when
    compiling."""
    run = importlib.import_module("subprocess").run  # rarely needed, and slow to import
    ran = run([sys.executable, "-c", PROBE, triple, cpu], capture_output=True, text=True)
    if "not a recognized processor" in ran.stderr:
        raise InvalidOption(
            f"{cpu!r} is no CPU that LLVM knows",
            help="TESSERA_CPU may be native, generic, avx2, avx512, amx or an LLVM name, e.g. znver4",
        )


def host_features() -> frozenset[str]:
    """Return the LLVM names of this machine's features, e.g. avx512f, amx-bf16, without those of the knob cpu.hide."""
    return _features(str(knobs.cpu.hide))


@lru_cache
def _features(hidden: str) -> frozenset[str]:
    begins = tuple(word.strip() for word in hidden.split(",") if word.strip())
    found = _llvm().get_host_cpu_features().items()
    return frozenset(name for name, on in found if on and not name.startswith(begins))


@lru_cache(maxsize=64)
def _machine(target: Target) -> Any:
    llvm = _llvm()
    try:
        found = llvm.Target.from_triple(target.triple)
        return found.create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=target.opt,
            reloc=target.reloc,
            codemodel=target.codemodel,
        )
    except RuntimeError as error:
        raise LLVMError(f"no LLVM target machine for {target.key}: {error}") from None


# --- modules ----------------------------------------------------------------------------------------------
class Module:
    """A parsed, optimised module. `timings` has the milliseconds of each stage that ran (parse, opt, emit)."""

    def __init__(
        self, ref: Any, context: Any, target: Target, source: str, timings: dict[str, float]
    ) -> None:
        self._context = context  # must outlive the module
        self._ref = ref
        self.target = target
        self.source = source
        self.timings = timings

    def text(self) -> str:
        """The LLVM IR after the passes."""
        return str(self._ref)

    def to_assembly(self) -> str:
        """The target's assembly: PTX for NVIDIA."""
        with _stage(self, "emit"):
            return _machine(self.target).emit_assembly(self._ref)

    def to_object(self) -> bytes:
        """A relocatable object file."""
        with _stage(self, "emit"):
            return _machine(self.target).emit_object(self._ref)


@contextmanager
def _stage(module: Module, name: str) -> Generator[None]:
    start = time.perf_counter()
    try:
        yield
    except RuntimeError as error:
        raise LLVMError(f"LLVM failed to {name}: {error}", module.source) from None
    module.timings[name] = (time.perf_counter() - start) * 1e3


def optimise(
    text: str, target: Target, passes: str | None = DEFAULT_PASSES, verify: bool | None = None
) -> Module:
    """Parse `text` and run `passes`: a comma list of PASSES, one of O1 O2 O3 (no vectorisers, no unrolling), or
    "" / None for nothing. `verify` (default: the knob compilation.verify) checks the module first.
    """
    llvm = _llvm()
    start = time.perf_counter()
    context = llvm.create_context()
    try:
        ref = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        raise _located(str(error), text) from None
    module = Module(ref, context, target, text, {})
    if verify if verify is not None else knobs.compilation.verify:
        try:
            ref.verify()
        except RuntimeError as error:
            raise LLVMError(f"invalid LLVM IR: {error}", text) from None
    parsed = time.perf_counter()
    module.timings["parse"] = (parsed - start) * 1e3
    if passes:
        _run_passes(ref, target, passes)
        module.timings["opt"] = (time.perf_counter() - parsed) * 1e3
    return module


def _run_passes(ref: object, target: Target, passes: str) -> None:
    llvm = _llvm()
    level = int(passes[1]) if passes in ("O1", "O2", "O3") else None
    options = llvm.create_pipeline_tuning_options(speed_level=level or 2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(_machine(target), options)
    if level is not None:
        builder.getModulePassManager().run(ref, builder)
        return
    manager = llvm.create_new_module_pass_manager()
    for name in passes.split(","):
        method = PASSES.get(name.strip())
        if method is None:
            raise LLVMError(f"unknown LLVM pass {name!r}; known: {', '.join(PASSES)}")
        getattr(manager, method)()
    manager.run(ref, builder)


def _located(message: str, text: str) -> LLVMError:
    """Return the parser's error, with the lines around its position."""
    found = re.search(r"<string>:(\d+):(\d+): error: (.*)", message)
    if found is None:
        return LLVMError(message, text)
    line, column = int(found[1]), int(found[2])
    return LLVMError(f"LLVM IR line {line}, column {column}: {found[3]}", text, line)


# --- loading ----------------------------------------------------------------------------------------------
class LoadedObject(Mapping[str, int]):
    """Machine code in this process: symbol -> address. The code stays mapped as long as this object lives."""

    def __init__(self, tracker: Any, jit: Any, addresses: dict[str, int]) -> None:
        self._tracker, self._jit = tracker, jit
        self.addresses = addresses

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.addresses)

    def __len__(self) -> int:
        return len(self.addresses)

    def pin(self) -> LoadedObject:
        """Keep the code mapped until the process ends, interpreter shutdown included: native threads may be running
        it."""
        for held in (self, self._tracker, self._jit):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        return self


_names = itertools.count()
_jit_lock = threading.Lock()


@cache
def _jit() -> Any:
    # JITLink puts all sections of an object into one block, so that near constants and calls always reach.
    return _llvm().create_lljit_compiler(_machine(host("native")), use_jit_link=True)


@undivided()
def link_object(
    image: bytes,
    symbols: Iterable[str],
    imports: Mapping[str, int] | None = None,
    process: bool = True,
) -> LoadedObject:
    """Load an object for this machine and find `symbols`. `imports` gives addresses of names that it uses;
    `process` also lets it see the symbols of this process (libc, libm, Python).
    """
    symbols = list(symbols)
    with _jit_lock:
        jit = _jit()
        builder = _llvm().JITLibraryBuilder().add_object_img(image)
        if process:
            builder.add_current_process()
        for name in symbols:
            builder.export_symbol(name)
        for name, address in (imports or {}).items():
            builder.import_symbol(name, address)
        try:
            tracker = builder.link(jit, f"tessera.{next(_names)}")
        except RuntimeError as error:
            raise LLVMError(f"cannot load the object: {error}") from None
    return LoadedObject(tracker, jit, {name: tracker[name] for name in symbols})
