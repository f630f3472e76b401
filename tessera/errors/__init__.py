"""Defines the catalogue of errors: every mistake a kernel's author can make has one class here.

A class holds the `code` by which the docs list it, a message `template` and a default `help` line. The raising code
gives the facts (`raise UnknownName(name="offs")`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tessera.errors.base import FailedTile as FailedTile
from tessera.errors.base import Loc as Loc
from tessera.errors.base import Spelling as Spelling
from tessera.errors.base import TesseraError as TesseraError
from tessera.errors.base import suggestion as suggestion


# --- mistakes in a kernel -----------------------------------------------------------------------------
class CompilationError(TesseraError):
    """A kernel cannot be compiled; the text points at the kernel's own source."""

    code = "compilation"


class UnsupportedLanguageConstruct(CompilationError):
    code = "unsupported-syntax"
    template = "{what} is not supported in a kernel"


class UnknownName(CompilationError):
    code = "unknown-name"
    template = "{name} is not defined"


class ForbiddenGlobal(CompilationError):
    code = "forbidden-global"
    template = "Cannot access global variable {name} from within @jit'ed function."
    help = (
        "a kernel sees only globals that cannot change under it: write `{name} = tl.constexpr(...)`, "
        "or pass the value as a `tl.constexpr` parameter"
    )


class NotConstexpr(CompilationError):
    code = "not-constexpr"
    template = "{what} must be known at compile time, got {got}"
    help = (
        "annotate the parameter `: tl.constexpr`, or compute the value from constexpr values only"
    )


class InvalidArgument(CompilationError):
    """An argument of an operation has the wrong type or value."""

    code = "invalid-argument"
    template = 'invalid argument "{argument}" of {function}(): {problem}'


class TypeMismatch(CompilationError):
    code = "type-mismatch"


class ShapeMismatch(CompilationError):
    code = "shape-mismatch"


class LoopCarriedType(CompilationError):
    code = "loop-carried-type"
    template = (
        "Loop-carried variable {name} has initial type {initial} but is re-assigned to {later} in loop! "
        "Please make sure that the type stays consistent."
    )
    help = "give the initial value the type of the later one, or cast the later one with `.to(...)`"


class BranchMismatch(CompilationError):
    code = "branch-mismatch"
    template = "Mismatched type for {name} between then block ({then}) and else block ({orelse})"
    help = "no promotion happens where branches join: give both one type and shape, by `.to(...)` or `tl.full`"


class ReturnMismatch(CompilationError):
    code = "return-mismatch"
    template = "Return type mismatch: {first} and {second}"


class CompileTimeAssertionFailure(CompilationError):
    code = "static-assert"


class HostOnly(TesseraError, RuntimeError):
    """A kernel was called as a function from the host."""

    code = "host-only"
    template = "Cannot call @{package}.jit'd outside of the scope of a kernel"
    help = "launch a kernel with a grid: `{name}[grid](...)`"


class KernelOnly(TesseraError, ValueError):
    """A `tl.*` operation was called from the host."""

    code = "kernel-only"
    template = (
        "Did you forget to add @{package}.jit ? (`{name}` can only be called inside a kernel)"
    )
    help = "put `@{package}.jit` on the function that calls it, and launch that with `function[grid](...)`"


class NotAFunction(TesseraError, TypeError):
    """A decorator was put on something that it cannot wrap."""

    code = "not-a-function"
    template = "@{decorator} needs {wanted}, got {got}"
    help = "the decorators of a kernel stand in this order: @autotune, @heuristics, @jit, `def`"


class SourceNotFound(TesseraError, ValueError):
    """The text of a function cannot be read."""

    code = "no-source"
    template = "@jit functions should be defined in a Python file{why}"
    help = "write the kernel as a `def` in a file or a notebook; text for `exec` is written to a file and imported"


class InterpreterError(TesseraError):
    code = "interpreter"


class OutOfBounds(InterpreterError):
    """An access outside of the storage of an array argument."""

    code = "out-of-bounds"
    help = "guard the access with a mask, or check the strides and the grid of the launch"


class NotFinite(InterpreterError):
    """The first NaN or infinity that a checked launch computes."""

    code = "not-finite"
    help = "reported in checked mode only: mask the element, or change the computation"


class IntegerOverflow(InterpreterError):
    """A result that does not fit its integer type, or a division by zero, in a checked launch."""

    code = "integer-overflow"
    help = "cast an operand to a wider type with `.to(...)`"


class ProgramRace(InterpreterError):
    """Two programs of a checked launch access an element, and one of them changes it."""

    code = "race"
    help = "programs run in any order: store elements of a program's own, use `tl.atomic_add`, or launch twice"


class UninitialisedRead(InterpreterError):
    """A program of a checked launch reads an element of an array declared by `tessera.testing.uninitialised` that no
    kernel has stored."""

    code = "uninitialised-read"
    help = "store the element before (all of them: compare masks and grids), or fill the array on the host"


class DeviceAssertionError(TesseraError, AssertionError, RuntimeError):
    code = "device-assert"


class SimulatedHazard(TesseraError):
    """The simulated GPU met what a real one may not survive, or not compute as meant: threads missing at a barrier,
    threads that wait for ever, copies whose completion nobody waited for."""

    code = "simulated-hazard"
    help = "this is a bug of tessera: please report it with the kernel and TESSERA_SIMT_SEED"


class SimulatedUnknown(TesseraError):
    """Assembly in LLVM IR given to the simulator, whose meaning the simulated GPU does not know."""

    code = "simulated-unknown"
    help = "run the kernel on the CPU or on a GPU"


# --- the compiler's own failures ------------------------------------------------------------------------
class InternalError(TesseraError):
    """The compiler broke; not the kernel author's mistake. `reproducer` is a directory with IR and command."""

    code = "internal"
    help = "this is a bug of tessera: please report it with the reproducer"


class IRError(InternalError):
    """IR that the verifier or the parser refuses."""

    code = "invalid-ir"


class SynchronizationError(InternalError):
    """Finished GPU IR in which an access to shared memory is not ordered after what it depends on, or lies where the
    hardware cannot reach it."""

    code = "synchronization"


# --- the machine ----------------------------------------------------------------------------------------
class OutOfResources(TesseraError):
    """A kernel needs more of a resource than the device has. `required` and `limit` in the resource's unit."""

    code = "out-of-resources"
    help = "Reducing block sizes or `num_stages` may help."

    def __init__(self, required: int, limit: int, name: str):
        self.required, self.limit, self.name = required, limit, name
        super().__init__(f"out of resource: {name}, Required: {required}, Hardware limit: {limit}.")


class PTXASError(TesseraError):
    code = "ptxas"


class CompilationTimeout(TesseraError):
    """A compilation took longer than the knob compilation.budget allows, or ptxas than nvidia.ptxas_budget does.
    `step`: what it was at."""

    code = "compile-timeout"
    help = "set TESSERA_COMPILE_BUDGET to more seconds (0: no limit), or make tiles or unrolled loops smaller"

    def __init__(self, step: str, seconds: float, help: str | None = None):
        self.step = step
        super().__init__(f"the compilation took more than {seconds:g} s, at {step}", help=help)


class ToolNotFound(TesseraError):
    code = "tool-not-found"


class TorchNotFound(ToolNotFound, ImportError):
    """`tessera.torch` needs PyTorch, which is missing or too old."""

    code = "torch-not-found"
    template = "{problem}"
    help = (
        'install it with `pip install "tessera-lang[torch]"`; the rest of tessera works without it'
    )


class NoDeviceError(TesseraError, RuntimeError):
    code = "no-device"


class LaunchError(TesseraError):
    """The arguments, the grid or the options of a launch are wrong."""

    code = "launch"


class InvalidOption(LaunchError, AssertionError):
    """A launch option has a value that it cannot have."""

    code = "launch-option"


class UnknownOptimization(LaunchError, ValueError):
    code = "unknown-optimization"
    template = "there is no optimisation {name!r}; near names: {near}"
    help = "docs/optimizations.md lists all of them; write names with commas in between, or `all`"


_ELSEWHERE = {  # what is said in another way than by an option
    "grid": "the grid stands in brackets: `kernel[grid](...)`",
    "threads": "a program has `num_warps` warps",
    **dict.fromkeys(
        ("waves_per_eu", "kpack", "matrix_instr_nonkdim"),
        "only AMD's back end has it: leave it out",
    ),
}


class UnknownOption(LaunchError, KeyError):
    """A keyword of a launch is neither a parameter of the kernel nor an option of its back end."""

    code = "unknown-option"
    template = "Keyword argument {name} was specified but unrecognised"

    def __init__(self, name: str, known: Iterable[str], help: str | None = None):
        self.name, self.known = name, [*known]
        near = suggestion(name, self.known) or _ELSEWHERE.get(name) or help
        super().__init__(name=name, help=near or f"there are {', '.join(sorted(self.known))}")


class InvalidArguments(LaunchError, TypeError):
    """The arguments of a launch do not fit the kernel's parameters."""

    code = "launch-arguments"


class UnknownKeyword(LaunchError, TypeError):
    """A function of the host API got a keyword argument that it does not have."""

    code = "unknown-keyword"
    template = "{function}() got an unexpected keyword argument {name!r}"


class ArgumentOverflow(LaunchError, OverflowError):
    """An integer argument of a launch has more than 64 bits."""

    code = "argument-overflow"
    template = "the integer argument {value} does not fit 64 bits"
    help = "pass a smaller number, or a part of it, or a float"


class InvalidDescriptor(LaunchError, AssertionError):
    """An array cannot be described by a tensor descriptor."""

    code = "descriptor"


class ForeignSpecialization(LaunchError, RuntimeError):
    """`preload` was given the specialisation of another kernel or target."""

    code = "foreign-specialization"
    template = "Specialization data is for {found} but trying to preload for {name}"
    help = "give `preload` the `specialization_data` that a compile hook got for this kernel and target"


class HostPointerError(LaunchError, ValueError):
    code = "host-pointer"
    template = "Pointer argument {name} cannot be accessed from the GPU (cpu tensor?)"
    help = "move the tensor to the device with `.cuda()`, or run the kernel on the CPU backend"


class ForeignPointerError(LaunchError, ValueError):
    code = "foreign-pointer"
    template = "An array on device {device!r} cannot be accessed from the {place}"
    help = (
        "move all arrays of a launch to one device; the first of them decides where the kernel runs"
    )


class ReadOnlyArgument(LaunchError, ValueError):
    """A kernel writes to an array that must not change: read-only in NumPy, immutable in its library."""

    code = "read-only-argument"
    template = "kernel {kernel} writes to its parameter `{name}`, but the {type} given for it {why}"
    help = (
        "give it a copy that may be written, as `numpy.array(x)`, or an array made for the result"
    )


class MissingMemory(LaunchError, ValueError):
    """An array without memory (a fake tensor, one on the device `meta`) was given to a launch."""

    code = "missing-memory"
    template = "the {type} given for the parameter `{name}` of kernel {kernel} has no memory{where}"
    help = (
        "launch with a tensor that has data; to compile only, call `{kernel}.warmup(..., grid=...)`"
    )


class StridedArgument(LaunchError, ValueError):
    """An array whose elements do not lie one behind the other, for a kernel that is not told its strides."""

    code = "strided-argument"
    template = (
        "the array given for the parameter `{name}` of kernel {kernel} has strides {strides}, in elements, for its "
        "shape {shape}, and none of them is an argument of the launch: the kernel would {reads}"
    )
    help = (
        "a kernel gets the address of the first element: give `numpy.ascontiguousarray({name})`, copied back if the "
        "kernel writes there, or pass the strides (`{name}.strides[i] // {name}.itemsize`)"
    )


class SpecializationError(LaunchError, TypeError):
    code = "argument-type"
    template = "failed to specialize argument of type: {type}"
    help = "pass a tensor, an int, a float, a bool or None; annotate other values `: tl.constexpr`"


class ChangedGlobal(LaunchError, RuntimeError):
    """A constant that a kernel captured has another value than when the kernel was compiled."""

    code = "changed-global"
    template = (
        "Global variable {name} has changed since we compiled this kernel, from {seen} to {now}"
    )
    help = "pass a value that changes as a `tl.constexpr` parameter"


class ConflictingGlobal(LaunchError, RuntimeError):
    """A constant that a kernel and a function it calls capture has changed between the compilations of the two."""

    code = "conflicting-global"
    template = (
        "Global variable {name} has value {mine} when compiling {kernel}, but inner kernel {inner} has conflicting "
        "value {its} from when it was first compiled."
    )
    help = "pass a value that changes as a `tl.constexpr` parameter"


class AutotunerError(TesseraError):
    code = "autotuner"


class InvalidTuning(AutotunerError, ValueError, TypeError):
    """The arguments of `autotune` do not fit the kernel, or those of a launch do not fit those."""

    code = "tuning-arguments"


class PluginError(TesseraError):
    code = "plug-in"
    template = "the back end {name!r} that an installed package offers cannot be used: {why}"
    help = "the contract is in docs/backends.md"


class TritonAlreadyImported(TesseraError, ImportError):
    code = "triton-imported"
    template = (
        "`import triton` cannot mean tessera any more: another Triton was imported from {where}"
    )
    help = (
        "import tessera.compat before anything that imports triton, "
        "or start the program with `python -m tessera run`"
    )


TritonError = TesseraError  # the name kernels written for Triton catch
