"""Defines the output of compilation: texts of all levels, binary, metadata. A driver loads and launches it."""

from __future__ import annotations

import importlib
import threading
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, cast

from tessera.backends.compiler import Backend, GPUTarget
from tessera.compiler.source import ALIASES
from tessera.config import knobs
from tessera.config.forking import undivided
from tessera.errors import LaunchError, OutOfResources, suggestion
from tessera.ir import parse_module

if TYPE_CHECKING:
    from tessera.analysis.reports import Report

# Set by the runtime: kernel → its driver. A compiler without a runtime cannot launch.
DRIVER_FOR: list[Callable[[GPUTarget], Any]] = []
_LOADING = threading.RLock()


INTERFACE_VERSION = "3.8.0"  # the release of Triton whose interface this is
NO_SCRATCH: dict[str, Any] = {  # what Triton's kernels report about memory that ours do not need
    "tmem_size": 0, "global_scratch_size": 0, "global_scratch_align": 1, "profile_scratch_size": 0,
    "profile_scratch_align": 1, "tensordesc_meta": (), "triton_version": INTERFACE_VERSION,
}  # fmt: skip


class AsmDict(dict[str, Any]):
    """`kernel.asm`: the output of each stage by extension; derived views are computed lazily."""

    def __init__(self, stages: Mapping[str, Any], backend: Backend):
        super().__init__(stages)
        self.backend = backend

    def __missing__(self, key: str) -> Any:
        if key in ALIASES and ALIASES[key] in self:
            return self[ALIASES[key]]
        if key == "py" and "tir" in self:
            printer = importlib.import_module("tessera.compiler.printer")  # rarely needed
            value = printer.print_kernel(parse_module(self["tir"]))
        else:
            value = self.backend.derived(key, self)
        if value is None:
            error = KeyError(f"Unknown key: '{key}'")
            near = (
                suggestion(key, self) or f"the target {self.backend.target} has {', '.join(self)}"
            )
            error.add_note(f"  = help: {near}")
            raise error
        self[key] = value
        return value


class LazyDict:
    """Launch metadata that is computed only if a hook asks for it. `launch`: the kernel, its grid, all arguments."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.launch: tuple[CompiledKernel, tuple[int, ...], tuple[Any, ...]] | None = None
        self.extras: list[tuple[Callable[..., Mapping[str, Any]], tuple[Any, ...]]] = []

    def get(self) -> dict[str, Any]:
        for fn, args in self.extras:
            self.data = {**self.data, **fn(*args)}
        self.extras.clear()
        return self.data

    def add(self, fn: Callable[..., Mapping[str, Any]], args: tuple[object, ...]) -> None:
        self.extras.append((fn, args))


def flatten_arguments(kinds: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return the arguments that reach the binary: constants dropped, tuples flattened, a descriptor as base, extents
    (int32) and strides (int64)."""
    found: list[Any] = []
    for kind, x in zip(kinds, values, strict=False):
        if kind == "constexpr":
            continue
        if isinstance(kind, tuple):
            found += flatten_arguments(cast("tuple[Any, ...]", kind), x)
        elif kind.startswith("tensordesc"):
            found += [x.base, *map(int, x.shape), *map(int, x.strides)]
        else:
            found.append(x)
    return found


@lru_cache(maxsize=64)
def _metadata_type(*fields: str) -> Any:
    """Make the named tuple type of metadata with these fields, which takes as long as to print a small kernel's IR."""
    return namedtuple("KernelMetadata", fields)  # noqa: PYI024  # pyright: ignore[reportUntypedNamedTuple]


class CompiledKernel:
    """One specialisation of a kernel: what `kernel[grid](…)`, `kernel.warmup(…, grid=…)` and `compile` return.

    | attribute | what it is |
    |---|---|
    | `name`, `hash` | the symbol of the binary, the key in the disk cache |
    | `target`, `src` | the GPUTarget, and the ASTSource or the source of an IR file |
    | `asm` | the output of each stage by name, as below |
    | `metadata` | a named tuple: the options of the compilation, and the facts below |
    | `n_regs`, `n_spills` | registers of a thread, 32-bit words that it spills, once it is loaded; 0 on a CPU |
    | `n_max_threads` | threads that a CTA may have, once it is loaded; 1 on a CPU |
    | `run`, `function`, `module` | the launch function and the driver's handles; reading `run` loads the kernel |

    | `asm[…]` | on | what it is |
    |---|---|---|
    | `source`, `tir` | all | the IR of the front end, and after the target-neutral passes (`ttir` is the same) |
    | `gir`, `ptx`, `cubin` | GPU | the IR with layouts (`ttgir` is the same), PTX, machine code in bytes |
    | `llir` | all | LLVM IR; on a CPU comments name source lines |
    | `object` | CPU | an object file in bytes |
    | `sass` | GPU | the disassembled machine code, made on access |
    | `asm` | CPU | the assembler's text (`s` is the same), made on access |
    | `py` | all | the kernel as Python source, made from `tir` on access |

    | `metadata.…` | on | what it is |
    |---|---|---|
    | `remarks` | all | why an optimisation was not applied where it might be expected, as sentences |
    | `args` | all | the types of the arguments that reach the binary |
    | `written` | all | the numbers of the arguments through which the kernel may store |
    | `num_warps`, `num_stages`, `num_ctas` | all | the options of the launch, like all other options |
    | `shared` | all | bytes of shared memory of a CTA; 0 on a CPU |
    | `registers`, `spills` | GPU | registers of a thread, bytes that it spills, as ptxas reports them |
    | `warps`, `cluster_dims` | GPU | warps of a CTA including producers', CTAs of a cluster |
    | `scratch_bytes` | CPU | memory that each thread needs besides its stack |
    | `alone_up_to` | CPU | up to how many threads one alone, without atomic instructions, is faster; 0 or 1 if none |
    | `may_wait` | CPU | whether a program may wait until another one has done something |
    | `assumed_disjoint` | CPU | pairs of arguments that this build assumes not to overlap |

    `compiled[grid](*args, stream=None)` launches it with arrays and numbers for all parameters; those of `tl.constexpr`
    may be omitted. It raises LaunchError for another number of arguments, and for arrays that overlap in a way that
    this build does not support, `out-of-resources` if the device cannot run it. `asm` raises KeyError for what this
    target does not have.

    Example:
        >>> compiled = double.warmup(tessera.MockTensor(tl.float32), 5, BLOCK=8, grid=(1,))
        >>> compiled.name, sorted(compiled.asm), compiled.metadata.num_warps, compiled.metadata.remarks
        ('double', ['llir', 'object', 'source', 'tir'], 4, ())
        >>> x = np.ones(5, np.float32)
        >>> compiled[(1, 1, 1)](x, 5)
        >>> x
        array([2., 2., 2., 2., 2.], dtype=float32)
        >>> compiled[(1, 1, 1)](x)
        Traceback (most recent call last):
        tessera.errors.LaunchError: error[launch]: kernel double takes 3 arguments, or 2 without those of...
        >>> "ptx" in compiled.asm  # of a kernel for a GPU
        False
    """

    # Attributes that only this process can use are not in `__dict__`, which TorchInductor pickles and restores.
    __slots__ = ("__dict__", "__weakref__", "_run", "launcher")
    launcher: Any

    n_regs: int
    n_spills: int
    n_max_threads: int
    simulation: Any = None  # the report of the last launch on a simulated GPU

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.launcher = made._run = None
        return made

    def __init__(self, src: Any, metadata_group: Mapping[str, Any], hash: str):
        """`metadata_group` has the outputs of stages, metadata and the backend, each by its name. Programs replace this
        function by one with Triton's parameters, which are these."""
        stages, backend = metadata_group["stages"], metadata_group["backend"]
        fields = {**NO_SCRATCH, "remarks": (), **metadata_group["metadata"], "hash": hash}
        self.metadata: Any = _metadata_type(*sorted(fields))(**fields)
        self.asm = AsmDict(stages, backend)
        self.src = src
        self.name: str = self.metadata.name
        self.hash = hash
        self.target: GPUTarget = backend.target
        self.backend = backend
        made = self.metadata
        self.packed_metadata = (made.num_warps, made.num_ctas, made.shared)
        self.kernel: Any = stages.get(backend.binary_ext)
        self.module: Any = None
        self.function: Any = None
        self.metadata_group: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<CompiledKernel {self.name} for {self.target}>"

    def _init_handles(self) -> None:
        """Load the binary on the current device. Raises OutOfResources if the device cannot run it."""
        if self.module is None:
            self.load(DRIVER_FOR[0](self.target))

    def load(self, driver: Any) -> None:
        """Load the binary, once: a second load would replace the first one while another thread runs it."""
        with undivided(), _LOADING:
            if self.module is not None:
                return
            hooks = knobs.runtime
            hooks.kernel_load_start_hook(None, None, self.name, self.metadata_group, self.hash)
            driver.load_kernel(self)
            loaded = self.module, self.function
            hooks.kernel_load_end_hook(*loaded, self.name, self.metadata_group, self.hash)

    def check_resources(self, shared_limit: int, thread_limit: int, warp_size: int) -> None:
        if self.metadata.shared > shared_limit:
            raise OutOfResources(self.metadata.shared, shared_limit, "shared memory")
        threads = getattr(self.metadata, "warps", self.metadata.num_warps) * warp_size
        if threads > thread_limit:
            raise OutOfResources(threads, thread_limit, "threads")

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        """`kernel[(x, y, z)](*args, stream=None)`; constexpr arguments are skipped, or omitted. Raises LaunchError for
        another number of arguments.

        If arrays share memory in a way that this build does not support, it raises LaunchError; a launch by the
        kernel function takes another build in that case.
        """
        driver = DRIVER_FOR[0](self.target)
        gx, gy, gz = driver.extents(grid)

        def launch(*args: object, stream: int | None = None) -> None:
            at = (
                driver.get_current_stream(driver.get_current_device()) if stream is None else stream
            )
            driver.check_arrays(self, args)
            values = driver.arguments(self, args)
            self.run(gx, gy, gz, at, self.function, self.packed_metadata, None, None, None, *values)

        return launch

    @property
    def run(self) -> Callable[..., None]:
        """`run(gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter_hook, exit_hook, *args)`: launch.

        `args` are all of the kernel's arguments; constexpr ones are skipped. Hooks are called with `launch_metadata`.
        """
        if self._run is None:
            self._init_handles()
            self._run = self._make_run()
        return self._run

    def arguments(self, args: Sequence[object]) -> Iterable[Any]:
        """Return those of all arguments that the binary takes."""
        return self._picker()(args)

    def explain(self, *args: object, grid: Sequence[int] = (1,)) -> Report:
        """Return what `JITFunction.explain` returns, for this kernel and all its arguments. Without arguments arrays
        have an unknown size, and integers are 1024."""
        explain = importlib.import_module("tessera.explain")  # rarely needed
        return explain.explain_compiled(self, list(self.arguments(args)) if args else None, grid)

    def _make_run(self) -> Callable[..., None]:
        launcher, pick = self.launcher, self._picker()

        def run(
            gx: int, gy: int, gz: int, stream: int, function: object, packed: object,
            launch_metadata: Any, enter_hook: Any, exit_hook: Any, *args: object,
        ) -> None:  # fmt: skip
            if gx * gy * gz == 0:
                return
            if enter_hook:
                enter_hook(launch_metadata)
            launcher(gx, gy, gz, stream, *pick(args))
            if exit_hook:
                exit_hook(launch_metadata)

        return run

    def _picker(self) -> Callable[[Sequence[Any]], Iterable[Any]]:
        if not hasattr(self.src, "signature"):
            return lambda args: args
        kinds = tuple(self.src.signature.values())
        pick, count = self._pick_by(kinds), len(kinds)

        def checked(args: Sequence[object]) -> Iterable[Any]:
            return pick(args) if len(args) == count else self._pick_of_fewer(kinds, args)

        return checked

    def _pick_of_fewer(self, kinds: tuple[object, ...], args: Sequence[object]) -> Iterable[Any]:
        """Return the binary's arguments if those of `tl.constexpr` parameters are omitted, or all that became
        constants."""
        params = getattr(getattr(self.src, "fn", None), "params", ())
        declared = {i for i, p in enumerate(params) if p.is_constexpr}
        constants = {i for i, kind in enumerate(kinds) if kind == "constexpr"}
        for absent in (declared, constants):
            left = [kind for i, kind in enumerate(kinds) if i not in absent]
            if len(args) == len(left):
                return flatten_arguments(left, args)
        named = ", ".join(self.src.signature)
        raise LaunchError(
            f"kernel {self.name} takes {len(kinds)} arguments, or {len(kinds) - len(declared)} without those of "
            f"`tl.constexpr` parameters, got {len(args)}",
            help=f"its parameters are: {named}",
        )

    @staticmethod
    def _pick_by(kinds: tuple[object, ...]) -> Callable[[Sequence[Any]], Iterable[Any]]:
        if not all(isinstance(k, str) and not k.startswith("tensordesc") for k in kinds):
            return lambda args: flatten_arguments(kinds, args)
        indices = [i for i, k in enumerate(kinds) if k != "constexpr"]
        if indices == list(range(len(kinds))):
            return lambda args: args
        if len(indices) < 2:
            return lambda args: [args[i] for i in indices]
        return itemgetter(*indices)

    def launch_metadata(self, grid: tuple[int, ...], stream: int, *args: object) -> LazyDict:
        self._init_handles()
        found = LazyDict({"name": self.name, "function": self.function, "stream": stream})
        found.launch = (self, grid, args)
        extra = getattr(getattr(self.src, "fn", None), "launch_metadata", None)
        if extra is not None:
            names = self.src.fn.arg_names
            found.add(extra, (grid, self.metadata, dict(zip(names, args, strict=False))))
        return found
