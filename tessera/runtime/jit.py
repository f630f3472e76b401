"""`@jit` makes a launchable kernel of a Python function: it binds and specialises arguments, looks up compiled code and
launches it.

Native code (`native/`) runs a launch that was seen before; the rest of this file is the complete path, which also
prepares native launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, cast

from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel, check_fit, make_backend
from tessera.compiler import compile as compile_for
from tessera.compiler.tracebacks import trim_traceback
from tessera.config import knobs
from tessera.errors import UnknownOption
from tessera.language.callable import JITCallable
from tessera.runtime.arguments.aliasing import violates
from tessera.runtime.arguments.checks import check_launch
from tessera.runtime.arguments.specialize import constants_and_attrs
from tessera.runtime.cache.disk import toolchain_fingerprint
from tessera.runtime.cache.managers import kernel_cache
from tessera.runtime.driver import Driver, driver, driver_named
from tessera.runtime.launching import hooks, specialization_data, torch_ranges
from tessera.runtime.launching.async_compile import FutureKernel, active_mode
from tessera.runtime.launching.binding import DeviceCaches, Prepared, launch_key, make_binder
from tessera.runtime.launching.debuggers import lines_mode
from tessera.runtime.launching.interface import KernelInterface
from tessera.runtime.launching.mistakes import (
    call_with_names,
    check_options,
    check_parameters,
    with_note,
)
from tessera.runtime.launching.typed import Grid, Launch
from tessera.runtime.native.fast_path import FastPath, array_types, arrays_in, supported, units_of

if TYPE_CHECKING:  # JITFunction has an attribute of the other name
    from tessera.compiler import CompiledKernel as Compiled


@trim_traceback
def compile(
    src: object, target: GPUTarget | None = None, options: Mapping[str, object] | None = None
) -> CompiledKernel:
    """Compile a kernel without launching it, through the disk cache.

    `src` is an ASTSource (the kernel, its signature, constants and attributes) or the path of an IR file (`.tir`,
    `.gir`, `.llir`, `.ptx`; `.ttir` and `.ttgir` are accepted). `target` is a GPUTarget, by default the active
    driver's; `options` are launch options. The result is a CompiledKernel, whose `asm` holds the text of each level. It
    raises the errors that the compiler finds in the kernel, and `unknown-option` for an unknown option.

    Example:
        >>> from tessera.compiler import ASTSource
        >>> source = ASTSource(double, {"x": "*fp32", "n": "i32"}, {"BLOCK": 8})
        >>> kernel = tessera.compile(source, options={"num_warps": 1})
        >>> sorted(kernel.asm)
        ['llir', 'object', 'source', 'tir']
        >>> tessera.compile(source, options={"num_warp": 1})
        Traceback (most recent call last):
        tessera.errors.UnknownOption: error[unknown-option]: Keyword argument num_warp was specified...
    """
    if target is None:
        target = driver.active.get_current_target()
    return compile_for(
        src, target, options, store=kernel_cache(), toolchain=toolchain_fingerprint()
    )


P = ParamSpec("P")
_UNPICKLED = frozenset(("__wrapped__", "_bind", "_entry", "_fast", "_hash_lock", "_native", "_unhooked", "binder",
                        "device_caches", "run", "signature"))  # fmt: skip


class JITFunction(JITCallable, KernelInterface, Generic[P]):
    """A kernel, made by `jit`: `fn[grid](*args, **options)` compiles for the types of the arguments and launches.

    `grid` is 1 to 3 ints, or a function of a dict of the arguments by name. `warmup(*args, grid=…)` compiles without
    launching, also for MockTensors.

    Example:
        >>> double.arg_names
        ['x', 'n', 'BLOCK']
        >>> double.warmup(tessera.MockTensor(tl.float32), 5, BLOCK=8, grid=(1,))
        <CompiledKernel double for cpu:native>
    """

    _fast: FastPath | None = None
    _unhooked: FastPath | None = None  # for launches whose pre-run hooks have run

    def __init__(
        self,
        fn: Callable[P, object],
        version: object = None,
        do_not_specialize: Iterable[int | str] | None = None,
        do_not_specialize_on_alignment: Iterable[int | str] | None = None,
        debug: bool | None = None,
        noinline: bool = False,
        repr: Callable[[Any], str] | None = None,
        launch_metadata: Callable[..., object] | None = None,
    ):
        super().__init__(
            fn, noinline=noinline, debug=debug, do_not_specialize=do_not_specialize,
            do_not_specialize_on_alignment=do_not_specialize_on_alignment,
        )  # fmt: skip
        self.version = version
        self.launch_metadata = launch_metadata
        self.kernel: Any = None
        self.pre_run_hooks: list[Callable[..., None]] = []
        # The name of the compiled symbol, from a specialisation.
        self.repr: Callable[[Any], str] = repr if repr is not None else lambda _: fn.__name__
        self.device_caches = DeviceCaches(self)
        self._built = ""  # the `cache_key` of the kernel when it was compiled last
        self._bind: Any = None
        self._native: Any = None
        self._entry: Any = None  # what `kernel[grid]` calls: the same, or a new `run`
        self._interpret = knobs.runtime.interpret

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "run":  # of this kernel alone
            self._entry = self._by_run
        elif name == "hash" and value is None:  # of another source
            self.forget_fast_path()

    def __getstate__(self) -> dict[str, object]:
        """Return what describes the kernel, without the function, its module's globals and all that was compiled."""
        kept = {k: v for k, v in self.__dict__.items() if k not in _UNPICKLED}
        kept.update(
            params=self.params, source=self.source.without_tree(), fn=None, __globals__=None
        )
        if not getattr(kept["repr"], "__module__", "").startswith("torch."):
            kept["repr"] = None
        return {
            **kept,
            "used_global_vals": {},
            "_used_by": {},
            "_watched": {},
            "_callees": [],
            "pre_run_hooks": [],
            "launch_metadata": None,
            "kernel": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.device_caches = DeviceCaches(self)
        self._bind = self._fast = self._unhooked = self._native = self._entry = None
        if self.repr is None:
            self.repr = lambda _: self.__dict__["__name__"]

    def __hash__(self) -> int:
        return hash(self.cache_key)

    def __eq__(self, other: object) -> bool:
        return self is other

    def add_pre_run_hook(self, hook: Callable[..., None]) -> None:
        """Make `hook(*args, **kwargs)` run before every launch."""
        self.pre_run_hooks.append(hook)

    @property
    def base_fn(self) -> Callable[..., Any]:
        return self.fn

    def create_binder(self) -> Any:
        if self._bind is None:
            check_parameters(self.params)
            self._bind = make_binder(self)
        return self._bind

    # Tools that inspect kernels look for these names.
    ASTSource = ASTSource
    CompiledKernel = CompiledKernel
    compile = staticmethod(compile)

    # --- the two ways of a launch ------------------------------------------------------------------------------
    def __getitem__(self, grid: Grid) -> Launch[P]:
        """Return `kernel[grid]`, to be called with (*args, **options). `grid`: 1 to 3 ints, or a callable that returns
        them."""
        if JITFunction.run is not _RUN:  # programs replace it, to record launches
            return super().__getitem__(grid)
        native = self._entry or self._start_native()
        try:
            return MethodType(native, grid)  # binds like a partial, in three quarters of its time
        except TypeError:  # a grid of None binds to nothing; the launch reports it
            return cast("Launch[P]", partial(native, grid))

    def _by_run(self, grid: Grid, /, *args: object, **kwargs: object) -> object:
        return super().__getitem__(grid)(*args, **kwargs)

    if TYPE_CHECKING:

        def warmup(self, *args: object, grid: Grid, **kwargs: object) -> Compiled: ...

    @trim_traceback
    @with_note("give `grid=(8,), warmup=False` by name, or launch with `kernel[(8,)](...)`")
    def run(
        self, *args: object, grid: object, warmup: bool, **kwargs: object
    ) -> CompiledKernel | None:
        """Compile if needed and, unless `warmup`, launch. None if a cache hook vetoed the compilation."""
        if warmup:
            self._run_hooks(args, kwargs)
            return self._launch(None, None, args, kwargs, warmup=True)
        return (self._native or self._start_native())(grid, *args, **kwargs)

    @trim_traceback
    def _start_native(self) -> Any:
        """Make the builtin function that launches; its first call of each kind is passed on to `_launch`."""

        @trim_traceback  # of the frame that calls what is trimmed
        def complete(
            key: bytes | None, grid: object, /, *args: object, **kwargs: object
        ) -> CompiledKernel | None:
            return self._launch(key, grid, args, kwargs)

        @trim_traceback
        def fallback(
            key: bytes | None, grid: object, /, *args: object, **kwargs: object
        ) -> CompiledKernel | None:
            if not self.pre_run_hooks:
                return self._launch(key, grid, args, kwargs)
            self._run_hooks(args, kwargs)
            if self._fast is None:
                return self._launch(None, grid, args, kwargs)
            if self._unhooked is None:
                self._unhooked = FastPath(self.params, [], complete)
            return self._unhooked.launch(grid, *args, **kwargs)

        self.create_binder()
        if self._interpret or not supported():
            self._native = partial(fallback, None)
        else:
            self._fast = FastPath(self.params, self.pre_run_hooks, fallback)
            self._native = self._fast.launch
        self._entry = self._entry or self._native
        return self._native

    def _run_hooks(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Call the pre-run hooks with the options as the launch will see them."""
        debug = bool(kwargs.get("debug", self.debug) or knobs.runtime.debug)
        about = {"debug": debug, "instrumentation_mode": knobs.compilation.instrumentation_mode}
        for hook in self.pre_run_hooks:
            hook(*args, **{**kwargs, **about})

    def forget_fast_path(self) -> None:
        """Send the next launches through Python, which looks up caches and calls hooks."""
        for path in (self._fast, self._unhooked):
            if path is not None:
                path.clear()

    # --- the complete path ---------------------------------------------------------------------------------------
    @trim_traceback
    def _launch(
        self,
        fast_key: bytes | None,
        grid: object,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        warmup: bool = False,
    ) -> Any:
        debug = kwargs.get("debug", self.debug) or knobs.runtime.debug
        mode = knobs.compilation.instrumentation_mode
        if not mode and (self._interpret or driver.active.name == "interpreter"):
            mode = lines_mode()
        check = debug == "check" or knobs.runtime.check
        if debug or check:
            kwargs["debug"] = "check" if check else debug
        if mode:
            kwargs["instrumentation_mode"] = mode
        bind = self._bind or self.create_binder()
        values, pairs, options = bind(*args, **kwargs)
        self._refresh(values)
        on = driver_named("interpreter") if self._interpret else driver.for_launch(pairs, values)
        if check and on.name != "interpreter":
            on = driver_named("cpu")  # checked builds run on the host
        device = on.get_current_device()
        cache, prepared_of, target, _, _ = self.device_caches[
            device if on.name == "cuda" else f"{on.name}:{device}"
        ]
        key = launch_key(pairs, options)
        compiled = cache.get(key)
        if compiled is None:
            compiled = self._compile(cache, key, pairs, options, target, device, warmup)
            if compiled is None:
                return None
        prepared = prepared_of.get(key)
        if prepared is None:
            prepared = prepared_of[key] = Prepared(tuple(p[0] for p in pairs))
        if warmup:
            return compiled
        if callable(grid):
            named = dict(zip(self.arg_names, values, strict=True))
            grid = call_with_names(self.__name__, "the grid", grid, named, self.arg_names)
        grid = on.extents(grid)
        if isinstance(compiled, FutureKernel):
            compiled = compiled.result()
        assumed = getattr(compiled.metadata, "assumed_disjoint", None)
        if assumed and violates(assumed, compiled.metadata.args, prepared.arguments(values)):
            compiled = self._overlapping(cache, pairs, options, target, device)
            if compiled is None:
                return None
        if grid[0] * grid[1] * grid[2] != 0:
            run_time = list(prepared.arguments(values))
            check_launch(self, compiled, prepared.kinds, values, run_time, checked=check)
            self._start(compiled, run_time, values, grid, on, device)
            if self._fast is not None:
                self._install(fast_key, values, prepared, options, compiled, on, device)
        return compiled

    def _overlapping(
        self, cache: dict[Any, Any], pairs: Any, options: dict[str, Any], target: GPUTarget, device: int
    ) -> Any:  # fmt: skip
        """Return a build of the kernel that does not assume disjoint arrays; None if a hook vetoed it."""
        options = {**options, "may_overlap": True}
        key = launch_key(pairs, options)
        found = cache.get(key)
        if found is None:
            found = self._compile(cache, key, pairs, options, target, device, warmup=False)
        return found.result() if isinstance(found, FutureKernel) else found

    def _start(
        self,
        kernel: CompiledKernel,
        run_time: list[Any],
        values: tuple[object, ...],
        grid: Any,
        on: Driver,
        device: int,
    ) -> None:
        stream = on.get_current_stream(device)
        args = on.arguments(kernel, run_time)
        if kernel.module is None:
            kernel.load(on)
        hooks.launch(kernel, grid, stream, args, values)

    def _install(
        self, key: bytes | None, values: Any, prepared: Prepared, options: dict[str, Any], kernel: CompiledKernel,
        on: Driver, device: int,
    ) -> None:  # fmt: skip
        """Let native code run the next such launch, unless more than the launch itself is to be done."""
        array_types().learn_numbers((*values, *options.values()))
        if key is None:  # an argument of an unknown type, which may be learnable
            array_types().learn_numpy()
            for x in arrays_in(values):
                array_types().learn(x)
            return
        start = on.native_start(kernel, device)
        if start is None:
            return
        start = hooks.hooked(start, kernel, device)
        path = self._unhooked if self.pre_run_hooks else self._fast
        if path is not None:
            places = [place for fn in self._functions(values) for place in fn.places()]
            places += torch_ranges.places(kernel)
            units = units_of(prepared.kinds, values)
            path.install(key, values, units, options, kernel, start, places)

    def _functions(self, values: tuple[object, ...]) -> list[JITCallable]:
        """Return the kernel, and the jitted functions among its arguments."""
        return [self, *(x for x in values if isinstance(x, JITCallable))]

    def _refresh(self, values: tuple[object, ...]) -> None:
        """Drop what was compiled with functions, classes, attributes of modules or knobs that have changed since. Raise
        ChangedGlobal if a captured constant has changed."""
        self.device_caches.renew()
        for fn in self._functions(values):
            fn.renew()
        before, self._built = self._built, self.cache_key
        if before and before != self._built:
            self.device_caches.forget_kernels()

    # --- compilation -----------------------------------------------------------------------------------------
    def check_fit(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        checked = knobs.runtime.check or kwargs.get("debug", self.debug) == "check"
        if self._interpret or checked:  # on the host, which has no such limits
            return
        values, pairs, options = self.create_binder()(*args, **kwargs)
        target = driver.for_launch(pairs, values).get_current_target()
        check_fit(self._source(pairs), target, options)

    def _source(self, pairs: Any) -> ASTSource:
        """Return the source to compile for specialised arguments."""
        kinds, keys = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        constants, attrs = constants_and_attrs(kinds, keys)
        signature = dict(zip(self.arg_names, kinds, strict=True))
        return ASTSource(self, signature, constants, attrs)

    def _compile(
        self, cache: dict[Any, Any], key: Any, pairs: Any, options: dict[str, Any], target: GPUTarget, device: int,
        warmup: bool,
    ) -> Any:  # fmt: skip
        check_options(options)
        src, keys = self._source(pairs), tuple(p[1] for p in pairs)
        try:
            parsed = make_backend(target).parse_options(options)
        except UnknownOption as error:
            raise UnknownOption(error.name, [*self.arg_names, *error.known]) from None
        about = hooks.hook_arguments(src, key, keys, options, parsed, target, device, warmup)
        hook = knobs.runtime.jit_cache_hook
        if hook is not None and hook(**about, already_compiled=False):
            return None
        store, toolchain = kernel_cache(), toolchain_fingerprint()

        mode = active_mode.get()
        elsewhere = getattr(mode.executor, "run_stages", None) if mode is not None else None

        def work() -> CompiledKernel:
            return compile_for(
                src, target, options, store=store, toolchain=toolchain, run_stages=elsewhere
            )

        def finish(kernel: CompiledKernel) -> CompiledKernel:
            cache[key] = kernel
            post = knobs.runtime.jit_post_compile_hook
            if post is not None:
                post(**about, already_compiled=True)
            return kernel

        if mode is not None:
            cache[key] = mode.submit((id(self), target, device, key), work, finish)
            return cache[key]
        return finish(work())

    def preload(self, data: str) -> Any:
        """Compile (or fetch from the cache) the kernel that `data` describes: the field `specialization_data` that
        cache hooks get. RuntimeError if it describes another kernel or target."""
        on = driver.active
        target, device = on.get_current_target(), on.get_current_device()
        name = f"{self.module}.{self.__qualname__}"
        pairs, options = specialization_data.decode(data, name, self.arg_names, target, self)
        cache = self.device_caches[device if on.name == "cuda" else f"{on.name}:{device}"][0]
        key = launch_key(pairs, options)
        found = cache.get(key)
        if found is None:
            found = self._compile(cache, key, pairs, options, target, device, warmup=True)
        return found

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.__qualname__})"


_RUN = JITFunction.run
