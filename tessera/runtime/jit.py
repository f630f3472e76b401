"""`@jit`: a Python function as a launchable kernel. Binding, specialisation, the look-up of compiled code, launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, overload

from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel, make_backend
from tessera.compiler import compile as compile_for
from tessera.config import knobs
from tessera.errors import LaunchError
from tessera.language.callable import JITCallable
from tessera.runtime.cache import disk_cache, toolchain_fingerprint
from tessera.runtime.driver import Driver, driver, driver_named
from tessera.runtime.interface import KernelInterface
from tessera.runtime.specialize import constants_and_attrs, flatten_runtime, specializer

FORBIDDEN_OPTIONS = ("device_type", "device", "stream")


def compile(
    src: Any, target: GPUTarget | None = None, options: Mapping[str, Any] | None = None
) -> CompiledKernel:
    """Compile an ASTSource or an IR file for `target` (default: the active driver's), through the disk cache."""
    if target is None:
        target = driver.active.get_current_target()
    return compile_for(src, target, options, store=disk_cache(), toolchain=toolchain_fingerprint())


class _Prepared:
    """A compiled kernel with all that its launches need, kept under the specialisation key."""

    __slots__ = ("compiled", "kinds", "pick", "plain")

    def __init__(self, compiled: CompiledKernel, kinds: tuple[Any, ...]):
        self.compiled = compiled
        self.kinds = kinds
        # Without tuples and descriptors the run-time arguments are picked by position.
        self.plain = all(isinstance(k, str) and not k.startswith("tensordesc") for k in kinds)
        indices = [i for i, k in enumerate(kinds) if k != "constexpr"]
        self.pick: Callable[[Any], Iterable[Any]]
        if len(indices) == 1:
            only = indices[0]
            self.pick = lambda values: (values[only],)
        else:
            self.pick = itemgetter(*indices) if indices else lambda values: ()

    def arguments(self, values: tuple[Any, ...]) -> Iterable[Any]:
        return self.pick(values) if self.plain else flatten_runtime(self.kinds, values)


def _make_binder(fn: JITCallable) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]]:
    """A function with the kernel's own signature that returns (argument values, specialisation pairs, options)."""
    scope: dict[str, Any] = {}
    parts: list[str] = []
    keys: list[str] = []
    for p in fn.params:
        scope[f"s_{p.name}"] = specializer(p)
        if p.has_default:
            scope[f"d_{p.name}"] = p.default
        parts.append(f"{p.name}=d_{p.name}" if p.has_default else p.name)
        keys.append(f"s_{p.name}({p.name})")
    names = [p.name for p in fn.params]
    comma = "," if names else ""
    text = (
        f"def dynamic_func({', '.join([*parts, '**options'])}):\n"
        f"    return ({', '.join(names)}{comma}), ({', '.join(keys)}{comma}), options\n"
    )
    exec(text, scope)
    return scope["dynamic_func"]


class JITFunction(JITCallable, KernelInterface):
    """A kernel: `fn[grid](*args, **options)` compiles for the arguments' types and launches.

    `grid`: 1 to 3 ints, or a callable of the bound arguments (by name). Options are those of `Options`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        version: Any = None,
        do_not_specialize: Iterable[int | str] | None = None,
        do_not_specialize_on_alignment: Iterable[int | str] | None = None,
        debug: bool | None = None,
        noinline: bool = False,
        repr: Callable[[Any], str] | None = None,
        launch_metadata: Callable[..., Any] | None = None,
    ):
        super().__init__(
            fn, noinline=noinline, debug=debug, do_not_specialize=do_not_specialize,
            do_not_specialize_on_alignment=do_not_specialize_on_alignment,
        )  # fmt: skip
        self.version = version
        self.launch_metadata = launch_metadata
        self.kernel: Any = None
        self.pre_run_hooks: list[Callable[..., None]] = []
        self.name_of = repr
        # device key → ({specialisation: prepared kernel}, target, back end)
        self.device_caches: dict[Any, tuple[dict[Any, _Prepared], GPUTarget, Any]] = {}
        self._bind: Any = None
        self._interpret = knobs.runtime.interpret

    def __hash__(self) -> int:
        return hash(self.cache_key)

    def __eq__(self, other: object) -> bool:
        return self is other

    def add_pre_run_hook(self, hook: Callable[..., None]) -> None:
        """`hook(*args, **kwargs)` runs before every launch."""
        self.pre_run_hooks.append(hook)

    @property
    def base_fn(self) -> Callable[..., Any]:
        return self.fn

    def create_binder(self) -> Any:
        if self._bind is None:
            self._check_parameters()
            self._bind = _make_binder(self)
        return self._bind

    def _check_parameters(self) -> None:
        for p in self.params:
            if p.is_constexpr and (p.do_not_specialize or p.do_not_specialize_on_alignment):
                which = "do_not_specialize" if p.do_not_specialize else "do_not_specialize_on_alignment"
                raise LaunchError(f"{p.name} marked as constexpr and listed in {which}")

    # --- launch -------------------------------------------------------------------------------------------
    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> CompiledKernel | None:
        """Compile if needed and, unless `warmup`, launch. None if a cache hook vetoed the compilation."""
        if self.debug or knobs.runtime.debug:
            kwargs["debug"] = True
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        bind = self._bind or self.create_binder()
        values, pairs, options = bind(*args, **kwargs)
        on = driver_named("interpreter") if self._interpret else driver.for_arguments(values)
        device = on.get_current_device()
        known = self.device_caches.get((on.name, device))
        if known is None:
            target = on.get_current_target()
            known = self.device_caches[on.name, device] = ({}, target, make_backend(target))
        key = (pairs, tuple(options.items())) if options else pairs
        try:
            prepared = known[0].get(key)
        except TypeError:  # an unhashable constexpr or option
            key = (repr(pairs), repr(options))
            prepared = known[0].get(key)
        if prepared is None:
            prepared = self._compile(known[0], key, pairs, options, known[1], warmup)
            if prepared is None:
                return None
        self._check_globals()
        if not warmup:
            self._launch(prepared, values, grid, on, device)
        return prepared.compiled

    def _launch(self, prepared: _Prepared, values: tuple[Any, ...], grid: Any, on: Driver, device: int) -> None:
        if callable(grid):
            grid = grid(dict(zip(self.arg_names, values, strict=True)))
        n = len(grid)
        gx, gy, gz = grid[0], grid[1] if n > 1 else 1, grid[2] if n > 2 else 1
        if gx < 0 or gy < 0 or gz < 0:
            raise LaunchError(f"the grid {tuple(grid)} has a negative extent")
        if gx * gy * gz == 0:
            return
        kernel = prepared.compiled
        stream = on.get_current_stream(device)
        address = on.address
        args = [address(x) for x in prepared.arguments(values)]
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        if kernel.module is None:
            on.load_kernel(kernel)
        if not enter and not leave:
            kernel.launcher(gx, gy, gz, stream, *args)
            return
        metadata = kernel.launch_metadata((gx, gy, gz), stream, *values)
        kernel.run(gx, gy, gz, stream, kernel.function, kernel.packed_metadata, metadata, enter, leave, *args)

    def _check_globals(self) -> None:
        for (name, _), (seen, scope) in self.used_global_vals.items():
            now = scope.get(name, seen)
            if now != seen:
                raise LaunchError(f"Global variable {name} has changed since we compiled this kernel, from {seen} to {now}")

    # --- compilation -----------------------------------------------------------------------------------------
    def _compile(
        self, cache: dict[Any, _Prepared], key: Any, pairs: Any, options: dict[str, Any], target: GPUTarget, warmup: bool
    ) -> _Prepared | None:
        for name in FORBIDDEN_OPTIONS:
            assert name not in options, f"{name} option is deprecated; current target will be used"
        kinds, keys = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        constants, attrs = constants_and_attrs(kinds, keys)
        hook_args = dict(key=repr(key), repr=self._shown(kinds), fn=self, compile={"key": key, "constants": constants})
        hook = knobs.runtime.jit_cache_hook
        if hook is not None and hook(**hook_args, is_manual_warmup=warmup, already_compiled=False):
            return None
        src = ASTSource(self, dict(zip(self.arg_names, kinds, strict=True)), constants, attrs)
        compiled = compile(src, target, options)
        prepared = cache[key] = _Prepared(compiled, kinds)
        post = knobs.runtime.jit_post_compile_hook
        if post is not None:
            post(**hook_args, is_manual_warmup=warmup, already_compiled=True)
        return prepared

    def _shown(self, kinds: tuple[Any, ...]) -> str:
        return f"{self.__name__}({', '.join(f'{n}: {k}' for n, k in zip(self.arg_names, kinds, strict=True))})"

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.fn.__qualname__})"


@overload
def jit(fn: Callable[..., Any]) -> JITFunction: ...
@overload
def jit(
    *,
    version: Any = None,
    repr: Callable[[Any], str] | None = None,
    launch_metadata: Callable[..., Any] | None = None,
    do_not_specialize: Iterable[int | str] | None = None,
    do_not_specialize_on_alignment: Iterable[int | str] | None = None,
    debug: bool | None = None,
    noinline: bool = False,
) -> Callable[[Callable[..., Any]], JITFunction]: ...
def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a kernel of a function. Bare or with options.

    `do_not_specialize`: parameters (index or name) whose values never become part of the compiled code;
    `do_not_specialize_on_alignment`: nor their divisibility by 16. `debug`: device asserts on. `noinline`: called, not
    inlined, by other kernels. `repr`: names the compiled symbol. `launch_metadata`: adds to what launch hooks get.
    """
    if fn is not None:
        return JITFunction(fn, **options)
    return lambda f: JITFunction(f, **options)


