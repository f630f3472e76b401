"""This module defines the contract between the compiler and a back end: target, options, stages, facts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from tessera.config import knobs
from tessera.config.optimizations import names_in
from tessera.dtypes import is_power_of_two
from tessera.errors import InvalidOption, UnknownOption
from tessera.utilities import number

# A stage takes the previous stage's output (a Module, text or bytes), returns its own, and adds to the metadata.
Stage = Callable[[Any, dict[str, Any]], Any]
COUNTS = (
    "num_warps", "num_stages", "num_ctas", "warp_size", "maxnreg", "ptx_version", "index_bits",
)  # fmt: skip
CLUSTERS = (1, 2, 4, 8, 16)  # CTAs that a program may be partitioned over


@dataclass(frozen=True, slots=True)
class GPUTarget:
    """What to compile for. `arch`: compute capability times ten for "cuda" (90), an ISA name for "cpu" ("native")."""

    backend: str
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"


@dataclass(frozen=True)
class Options:
    """Compile options, given as keyword arguments of a launch. All of them enter the cache key."""

    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    warp_size: int = 32
    maxnreg: int | None = None
    ptx_version: int | None = None
    ptx_options: str | None = None
    ir_override: str | None = None
    enable_fp_fusion: bool = True
    enable_reflect_ftz: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e5", "fp8e4b15")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[tuple[str, str], ...] = ()
    debug: bool | str = False  # "check": a checked build, on the host
    backend_name: str = ""
    sanitize_overflow: bool = True
    arch: str | None = None
    instrumentation_mode: str = ""
    # 64: compute offsets in 64 bits; automatic if an array has 2^31 elements or more.
    index_bits: int = 32
    pointer_maps: bool = True  # CUDA: loads through pointers may become loads through tensor maps
    # CUDA: code may assume that written arrays do not alias those that are read, with `pointer_maps`.
    no_alias: bool = True
    persistent: bool = True  # CUDA: CTAs may run several programs each, with `pointer_maps`
    tensor_stores: bool = True  # CUDA: descriptors may store by the TMA unit
    any_extent: bool = False  # CPU: the extents of tiles need not be powers of two
    may_overlap: bool = False  # CPU: arrays may overlap partially; automatic if they do
    # Names of optimisations with commas in between, as TESSERA_DISABLE.
    disable_optimizations: str = ""
    target: GPUTarget | None = None  # set by the back end

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and not hasattr(value, "__index__"):
                raise InvalidOption(
                    f"{name} must be an integer, got {value!r}", help="give an int, or leave it out"
                )
        if not isinstance(cast("object", self.ptx_options), str | None):
            raise InvalidOption(
                f"ptx_options must be a text, got {self.ptx_options!r}",
                help='give options of ptxas, as "-O2"',
            )
        if not is_power_of_two(self.num_warps):
            raise InvalidOption(
                "num_warps must be a power of 2",
                help=f"got num_warps={self.num_warps}; take 1, 2, 4, 8, 16 or 32",
            )
        if self.num_ctas not in CLUSTERS:
            raise InvalidOption(
                "num_ctas must be 1, 2, 4, 8 or 16",
                help=f"got num_ctas={self.num_ctas}; leave it out for 1",
            )
        if self.debug not in (False, True, "check"):
            raise InvalidOption(
                f'debug must be a bool or "check", got {self.debug!r}',
                help='"check" finds accesses outside of arrays',
            )
        if self.index_bits not in (32, 64):
            raise InvalidOption(
                f"index_bits must be 32 or 64, got {self.index_bits}",
                help="leave it out: it is chosen by the sizes of arrays",
            )
        if not isinstance(cast("object", self.disable_optimizations), str):
            raise InvalidOption(
                f"disable_optimizations must be a text, got {self.disable_optimizations!r}",
                help='write names with commas in between: "prefetch,licm"',
            )
        names_in(self.disable_optimizations)
        for name in ("num_stages", "maxnreg"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidOption(
                    f"{name} must not be negative, got {getattr(self, name)}",
                    help=f"leave `{name}` out for the default",
                )


_FIELDS = {f.name for f in dataclasses.fields(Options)} - {"target"}
FORMER_OPTIONS = {"apart": "no_alias"}
"""Former names of options, which still work, with a warning."""


def make_options(
    target: GPUTarget, given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Options:
    """Return a target's defaults updated by the given options. A former name of an option is accepted, with a
    DeprecationWarning. Raises UnknownOption for a name that no back end knows."""
    given = {_current(name): value for name, value in given.items()}
    for name in given:
        if name not in _FIELDS:
            raise UnknownOption(name, _FIELDS)
    chosen: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if knobs.language.fp32_default is not None:
        defaults = {**defaults, "default_dot_input_precision": knobs.language.fp32_default}
    values = {**defaults, **{k: _hashable(v) for k, v in chosen.items()}}
    return Options(target=target, **values)


def _current(name: str) -> str:
    """Return the current name of an option."""
    now = FORMER_OPTIONS.get(name)
    if now is None:
        return name
    warnings.warn(f"the option {name} is called {now} now", DeprecationWarning, stacklevel=3)
    return now


def _hashable(value: object) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted(cast(Mapping[str, str], value).items()))
    return tuple(cast(list[Any], value)) if isinstance(value, list) else number(value)


class Backend:
    """Base of back ends. One instance serves one target."""

    name: ClassVar[str] = ""
    binary_ext: ClassVar[str] = ""  # the stage whose output is loaded
    # Options that no stage reads: the tuner times configs that differ only in them once.
    idle_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, target: GPUTarget):
        self.target = target

    @classmethod
    def supports_target(cls, target: GPUTarget) -> bool:
        return target.backend == cls.name

    def parse_options(self, options: Mapping[str, object]) -> Options:
        """Return the options with this target's defaults. Raises UnknownOption for an unknown name, InvalidOption for a
        bad value."""
        return make_options(self.target, options, {"backend_name": self.name})

    def stages(self, options: Options) -> dict[str, Stage]:
        """Return stage name → function, in order; the names are the extensions under `kernel.asm`."""
        raise NotImplementedError

    def check_fit(self, make_ir: Callable[[], object], options: Options) -> None:
        """Raise OutOfResources if this tile IR certainly needs more than the target has. A back end without such limits
        does not even make the IR."""

    def toolchain(self) -> str:
        """Return the versions of the tools that this back end runs: part of the cache key."""
        return ""

    def hash(self) -> str:
        """Return what compiled code depends on besides kernel, options and tessera itself."""
        return f"{self.toolchain()}-{self.target}"

    def parse_attr(self, key: str) -> list[list[Any]]:
        """Return the attributes that a specialisation key of an argument stands for."""
        return [["tt.divisibility", 16]] if "D" in key else []

    # Programs written for Triton's MLIR call these; tile IR needs none of them.
    def load_dialects(self, context: object) -> None: ...

    def get_codegen_implementation(self, options: Options) -> dict[str, Any]:
        return {}

    def get_module_map(self) -> dict[str, Any]:
        return {}

    def derived(self, extension: str, asm: Mapping[str, object]) -> Any:
        """Return a view that is computed lazily (`sass`, `asm`), or None if there is no such view."""
        return None
