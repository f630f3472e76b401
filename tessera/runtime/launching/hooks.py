"""Makes the arguments of hooks: the metadata of a launch, or what is compiled and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel
from tessera.compiler.kernel import LazyDict
from tessera.config import knobs
from tessera.runtime.launching import specialization_data, torch_ranges
from tessera.runtime.native.fast_path import Start

FLAGS = (
    "num_warps",
    "num_ctas",
    "num_stages",
    "enable_fp_fusion",
    "launch_cooperative_grid",
    "extern_libs",
)


class JitFunctionInfo(NamedTuple):
    """The facts about a kernel function that cache hooks get."""

    module: str
    name: str
    jit_function: Any


def _is_plain(kernel: CompiledKernel) -> bool:
    """Whether nothing is to be done around a launch."""
    runtime = knobs.runtime
    hooks = runtime.launch_enter_hook, runtime.launch_exit_hook
    return not any(hooks) and not torch_ranges.recording(kernel)


def hooked(start: Start, kernel: CompiledKernel, device: int) -> Start:
    """Let native launches do what the launch hooks ask for: fill rows of times, if the only hook has `timing(kernel,
    device)` and that gives a place and a tag for this kernel; else call the hooks."""
    if _is_plain(kernel):
        return start
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    if len(before.calls) == len(after.calls) == 1 and not torch_ranges.recording(kernel):
        timing = getattr(before.calls[0], "timing", None)
        found = timing(kernel, device) if timing is not None else None
        if found is not None:
            return replace(start, timing=found[0], tag=found[1])
    enter, leave = around(kernel)
    return replace(start, enter=enter, leave=leave)


def around(kernel: CompiledKernel) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    """Wrap the launch hooks and the range of torch's profiler: (grid, stream, values) → what the second function, which
    is called after the launch, needs."""
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    shown = torch_ranges.recording(kernel)

    def enter(
        gx: int, gy: int, gz: int, stream: int, *values: object
    ) -> tuple[LazyDict, torch_ranges.Range | None]:
        metadata = kernel.launch_metadata((gx, gy, gz), stream, *values)
        if before:
            before(metadata)
        return metadata, torch_ranges.begin(kernel) if shown else None

    def leave(begun: tuple[LazyDict, torch_ranges.Range | None]) -> None:
        metadata, scope = begun
        if scope is not None:
            scope.__exit__(None, None, None)
        if after:
            after(metadata)

    return enter, leave


def launch(
    kernel: CompiledKernel,
    grid: tuple[int, int, int],
    stream: int,
    args: Iterable[object],
    values: Iterable[object],
) -> None:
    """Launch a kernel with its run-time arguments. `values`: those of the call, which hooks see."""
    if _is_plain(kernel):
        kernel.launcher(*grid, stream, *args)
        return
    enter, leave = around(kernel)
    begun = enter(*grid, stream, *values)
    kernel.launcher(*grid, stream, *args)
    leave(begun)


def hook_arguments(
    src: ASTSource, key: object, keys: object, options: dict[str, Any], parsed: object, target: GPUTarget, device: int,
    warmup: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the keyword arguments of cache hooks; empty if no hook is set."""
    if knobs.runtime.jit_cache_hook is None and knobs.runtime.jit_post_compile_hook is None:
        return {}
    fn = src.fn
    name, signature = fn.__qualname__, src.signature
    shown = ", ".join(f"{n}: {k}" for n, k in signature.items())
    facts = {k: getattr(parsed, k) for k in FLAGS}
    data = specialization_data.encode(f"{fn.module}.{name}", signature, keys, options, target)
    about = {
        "key": str(key), "signature": signature, "device": device, "constants": src.constants,
        **facts, "configs": [src.attrs], "specialization_data": data, "is_warmup": warmup,
    }  # fmt: skip
    return {
        "key": str(key),
        "repr": f"{name}[{', '.join(f'{k}={v}' for k, v in facts.items())}]({shown})",
        "fn": JitFunctionInfo(fn.module, name, fn),
        "compile": about,
        "is_manual_warmup": warmup,
    }
