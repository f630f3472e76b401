"""Runs a back end's stages over a source, with caching, dumping, overriding, timing and reproducers."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, cast

from tessera.analysis.written import written_arguments
from tessera.backends.compiler import Backend, GPUTarget, Options, Stage
from tessera.backends.plugins import plugin, plugin_names
from tessera.compiler.dumps import (
    dump,
    locate,
    located_level,
    override_text,
    read_output,
    replacement,
)
from tessera.compiler.fallback import Fallback, StageFailed, warn_of_dropped
from tessera.compiler.kernel import CompiledKernel
from tessera.compiler.source import ASTSource, IRSource, TextSource
from tessera.compiler.tracebacks import trim_traceback
from tessera.config import knobs
from tessera.config.budget import budget, check_budget
from tessera.config.forking import undivided
from tessera.errors import (
    CompilationError,
    InternalError,
    InvalidOption,
    LaunchError,
    OutOfResources,
    PTXASError,
    TesseraError,
)
from tessera.ir import Module, print_module

# By name; those given as "module:class" are imported when a kernel is first compiled for them.
BACKENDS: dict[str, type[Backend] | str] = {
    "cpu": "tessera.backends.cpu.backend:CpuBackend",
    "cuda": "tessera.backends.nvidia.backend:NvidiaBackend",
    "interpreter": "tessera.backends.interpreter:InterpreterBackend",
    "simt": "tessera.backends.nvidia.simulated:SimtBackend",
}


_ONE_BY_ONE = threading.RLock()  # for compilations whose applications are numbered
StageRunner = Callable[[Any, Backend, Options, str], "tuple[dict[str, Any], dict[str, Any]]"]


class Store(Protocol):
    """The storage of compiled kernels: the runtime's disk cache."""

    def get(self, key: str) -> dict[str, Any] | None: ...
    def put(self, key: str, parts: dict[str, Any]) -> Any: ...


def _meant(target: object) -> str:
    """Return what to write in place of a string like `sm_90` or `cpu`."""
    text = str(target)
    digits = "".join(c for c in text if c.isdigit()) or "90"
    write = 'GPUTarget("cpu", "native", 1)' if "cpu" in text else f'GPUTarget("cuda", {digits}, 32)'
    return f"write {write}, from tessera.backends.compiler"


@undivided()
def make_backend(target: GPUTarget) -> Backend:
    """Return the back end for a target. Raises LaunchError if there is none."""
    if not isinstance(cast("object", target), GPUTarget):
        raise InvalidOption(f"a target must be a GPUTarget, got {target!r}", help=_meant(target))
    for name, cls in BACKENDS.items():
        if isinstance(cls, str):
            if target.backend != name:
                continue
            module, _, member = cls.partition(":")
            cls = BACKENDS[name] = getattr(importlib.import_module(module), member)
        if cls.supports_target(target):
            return cls(target)
    offered = plugin(target.backend)
    if offered is not None and offered.compiler.supports_target(target):
        return offered.compiler(target)
    known = ", ".join(sorted({*BACKENDS, *plugin_names()}))
    raise LaunchError(f"no back end for target {target}", help=f"back ends: {known}")


def check_fit(src: ASTSource, target: GPUTarget, options: Mapping[str, object]) -> None:
    """Raise OutOfResources if the front end's output shows that the kernel cannot fit, as `compile` would much later.
    Nothing is checked if users replace stages or their outputs."""
    if knobs.runtime.add_stages_inspection_hook is not None or knobs.compilation.override:
        return
    if knobs.compilation.opt_limit is not None:
        return  # its applications would be counted
    backend = make_backend(target)
    parsed = backend.parse_options(options)
    if parsed.ir_override:
        return
    backend.check_fit(lambda: src.make_ir(parsed), parsed)


def get_cache_key(src: Any, backend: Backend, options: Options, toolchain: str = "") -> str:
    """Return a hash of everything that the compiled kernel depends on."""
    inspect = knobs.runtime.add_stages_inspection_hook
    # Code that tells of places in the source names the file, which a copy of the project has elsewhere.
    tells = options.debug or backend.name == "interpreter"
    parts = (
        src.hash(),
        str(backend.target),
        repr(options),
        backend.toolchain(),
        toolchain,
        repr(knobs.cache_key_values()),
        override_text(options),
        getattr(getattr(src, "fn", None), "file_name", "") if tells else "",
        *((str(inspect()[1]),) if inspect is not None else ()),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@trim_traceback
@undivided()
def compile(
    src: object,
    target: GPUTarget,
    options: Mapping[str, object] | None = None,
    store: Store | None = None,
    toolchain: str = "",
    run_stages: StageRunner | None = None,
) -> CompiledKernel:
    """Compile an ASTSource, an IRSource, a TextSource or the path of an IR file for `target`; no device is needed.

    Errors in the kernel are CompilationErrors. A failure of the compiler itself is an InternalError that names a
    directory with the last valid IR and the command that repeats the failing stage. `run_stages` compiles elsewhere:
    (src, backend, options, key) → (outputs by stage, metadata).
    """
    if not isinstance(src, (ASTSource, IRSource, TextSource)):
        if not isinstance(src, (str, os.PathLike)):
            raise CompilationError(
                f"what is compiled must be an ASTSource or the path of an IR file, got {src!r}",
                help="write ASTSource(kernel, signature, constexprs)",
            )
        path = os.fspath(cast("str", src))
        if not os.path.exists(path):
            error = FileNotFoundError(f"there is no file {path!r} with IR")
            error.add_note(
                "  = help: TESSERA_KERNEL_DUMP=1 writes such files; a kernel function is compiled by "
                "ASTSource(kernel, signature, constexprs)"
            )
            raise error
        src = IRSource(path)
    backend = make_backend(target)
    parsed = backend.parse_options(options or {})
    key = get_cache_key(src, backend, parsed, toolchain)
    limited = knobs.compilation.opt_limit is not None
    if limited:  # what a kernel is compiled to depends on those before it
        store = run_stages = None
    if store is not None and not knobs.compilation.always_compile:
        entries = store.get(key)
        if entries is not None:
            return _notify_listener(_restored(src, entries, key, backend), {}, cache_hit=True)
    with _undisturbed(), _ONE_BY_ONE if limited else nullcontext():
        stages, metadata = (run_stages or compile_stages)(src, backend, parsed, key)
    timings = metadata.pop("timings", {})
    if store is not None:
        # The fallback variant of a kernel with a precondition is compiled from its text, which must be kept, too.
        needed = (backend.binary_ext, *(("tir", "source") if "precondition" in metadata else ()))
        kept = {
            k: v
            for k, v in stages.items()
            if not knobs.compilation.store_binary_only or k in needed
        }
        store.put(key, {**{_ASM + k: v for k, v in kept.items()}, "metadata": metadata})
    if isinstance(src, ASTSource):
        warn_of_dropped(metadata, src.fn.file_name, src.fn.def_file_line_number)
    else:
        warn_of_dropped(metadata, src.name, 1)
    made = _made(src, stages, metadata, key, backend)
    return _notify_listener(made, timings, cache_hit=False)


@contextmanager
def _undisturbed() -> Generator[None]:
    """Compile within the time budget, and without garbage collection, which would only walk the IR's large graph."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with budget(knobs.compilation.budget or None):
            yield
    finally:
        if collecting:
            gc.enable()


def _notify_listener(
    kernel: CompiledKernel, timings: Mapping[str, Any], cache_hit: bool
) -> CompiledKernel:
    """Call the compilation listener. `times`: seconds by stage name, for stages that ran in this process."""
    listener = knobs.compilation.listener
    if listener is not None:
        listener(
            src=kernel.src,
            metadata=kernel.metadata._asdict(),
            metadata_group=kernel.metadata_group,
            times=dict(timings.get("stages", ())),
            cache_hit=cache_hit,
        )
    return kernel


_ASM = "asm."  # prefix of stage outputs among the entries of a cached kernel


def _restored(src: Any, entries: Mapping[str, Any], key: str, backend: Backend) -> CompiledKernel:
    stages = {k.removeprefix(_ASM): v for k, v in entries.items() if k.startswith(_ASM)}
    return _made(src, stages, entries["metadata"], key, backend)


def _made(src: Any, stages: Any, metadata: Any, key: str, backend: Backend) -> CompiledKernel:
    about = {**metadata, "target": backend.target}
    return CompiledKernel(src, {"stages": stages, "metadata": about, "backend": backend}, key)


def compile_stages(
    src: Any, backend: Backend, options: Options, key: str, shared_limit: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (outputs by stage, metadata), without optimisations that fail (compiler/fallback.py). Raises
    OutOfResources as soon as a stage needs more than `shared_limit` bytes of shared memory."""

    def attempt() -> tuple[dict[str, Any], dict[str, Any]]:
        return _run_stages(src, backend, options, key, shared_limit)

    def reproduce() -> str:
        text = _input_text(src, src.ext, {}, options)
        return _write_reproducer(src.ext, text, backend, options, strict=True)

    def theirs(error: Exception) -> bool:
        hooked = knobs.runtime.add_stages_inspection_hook is not None
        if hooked or options.ir_override or knobs.compilation.override:
            return True
        if not isinstance(error, PTXASError):
            return False
        return bool(options.ptx_options) or "_asm " in _input_text(src, src.ext, {}, options)

    disabled = options.disable_optimizations
    try:
        return Fallback(attempt, src.name, disabled, reproduce, theirs).run()
    except StageFailed as failed:
        error = failed.error
        text = _input_text(src, failed.level, failed.outputs, options)
        error.note(f"reproducer: {_write_reproducer(failed.level, text, backend, options)}")
        raise error from error.__cause__


def _run_stages(
    src: Any, backend: Backend, options: Options, key: str, shared_limit: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata: dict[str, Any] = {**vars(options), "name": src.name, "shared": 0}
    del metadata["target"]  # restored, as an object, by the maker of the CompiledKernel
    timings: list[tuple[str, float]] = []
    start = time.perf_counter()
    output = src.make_ir(options)
    timings.append(("front end", time.perf_counter() - start))
    if isinstance(output, Module):
        kernel = next(f for f in output.body if f.attrs["kernel"])
        metadata["args"] = [a.type.short for a in kernel.regions[0].args]
        metadata["written"] = written_arguments(output)
    stages = backend.stages(options)
    inspect = knobs.runtime.add_stages_inspection_hook
    if inspect is not None:
        inspect(backend, stages, options, None, backend.target)
    names = list(stages)
    if isinstance(src, IRSource):
        names = names[names.index(src.ext) + 1 :] if src.ext != "tir" else names
    outputs: dict[str, Any] = {"source": _source_text(src)}
    level: str = src.ext  # of the next stage's input
    for name in names:
        check_budget(f"stage {name!r}")
        start = time.perf_counter()
        output = _run_stage(name, stages[name], output, metadata, backend, level, outputs)
        level = name
        if shared_limit is not None and metadata["shared"] > shared_limit:
            raise OutOfResources(metadata["shared"], shared_limit, "shared memory")
        timings.append((name, time.perf_counter() - start))
        if isinstance(output, Module) and name == located_level():
            locate(output, name, src.name, key)
        outputs[name] = print_module(output) if isinstance(output, Module) else output
        if knobs.compilation.dump_ir:
            dump(outputs[name], name, src.name, key)
        given = replacement(name, src.name, key, options)
        if given is not None:
            output, outputs[name] = read_output(given, output)
    if knobs.compilation.time:
        _print_timings(src.name, timings, metadata)
    metadata["timings"] = {"stages": timings}
    return outputs, metadata


def _run_stage(
    name: str,
    stage: Stage,
    output: object,
    metadata: dict[str, Any],
    backend: Backend,
    level: str,
    outputs: dict[str, Any],
) -> Any:
    """Return the output of a stage. Raises StageFailed if it broke."""
    try:
        return stage(output, metadata)
    except Exception as e:
        if isinstance(e, TesseraError) and not isinstance(e, InternalError):
            raise  # the kernel is wrong, or the machine lacks something
        error = e if isinstance(e, InternalError) else _broken(name, backend, e)
        if error is not e:
            error.__cause__ = e
        raise StageFailed(error, level, outputs) from e


def _source_text(src: Any) -> str:
    return src.fn.src if isinstance(src, ASTSource) else src.text


def _broken(stage: str, backend: Backend, e: Exception) -> InternalError:
    return InternalError(
        f"stage {stage!r} of the {backend.name} back end failed: {type(e).__name__}: {e}"
    )


def _input_text(src: Any, level: str, outputs: Mapping[str, Any], options: Options) -> str:
    """Return the failing stage's input as text. Stages change IR in place, so the front end may have to run again."""
    if level in outputs:
        return str(outputs[level])
    made = src.text if isinstance(src, IRSource) else src.make_ir(options)
    return print_module(made) if isinstance(made, Module) else str(made)


def _write_reproducer(
    level: str, text: str, backend: Backend, options: Options, strict: bool = False
) -> str:
    """Write a stage's input and the command that compiles it, with `strict` up to the first fault; return where."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="tessera-reproducer-"))
    path = folder / f"input.{level}"
    path.write_text(text, encoding="utf-8")
    defaults = asdict(backend.parse_options({}))
    given = {k: v for k, v in asdict(options).items() if v != defaults[k] and k != "target"}
    target = backend.target
    code = (
        "from tessera.compiler import compile; from tessera.backends.compiler import GPUTarget; "
        f"compile({str(path)!r}, GPUTarget({target.backend!r}, {target.arch!r}, {target.warp_size}), {given!r})"
    )
    before = "TESSERA_STRICT=1 " if strict else ""
    command = f"{before}{sys.executable} -c {shlex.quote(code)}\n"
    (folder / "command.txt").write_text(command, encoding="utf-8")
    return str(folder)


def _print_timings(
    name: str, timings: list[tuple[str, float]], metadata: Mapping[str, Any]
) -> None:
    for stage, seconds in timings:
        print(f"{name:24} {stage:12} {seconds * 1e3:8.2f} ms", file=sys.stderr)
        for inner, part in metadata.get("timings", {}).get(stage, ()):
            print(f"{'':24}   {inner:22} {part * 1e3:8.2f} ms", file=sys.stderr)
