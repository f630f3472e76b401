"""Every public name of the language exists, is documented, and has a meaning on each target or a refusal with a reason.

The tables list the surface: what `tl` and its modules must hold, and which names a target refuses. An operation of the
compiler (a builtin) must be tied to the front end; every op that the front end can emit must have a NumPy meaning and
a lowering on the CPU and on NVIDIA.
"""

# pyright: basic
# ruff: noqa: SIM905
from __future__ import annotations

import inspect
import types

import pytest

import tessera
import tessera.backends.cpu.function
import tessera.backends.gpu.module
import tessera.backends.nvidia.backend
import tessera.frontend
import tessera.interp
import tessera.language as tl
import tessera.passes.neutral.descriptors
from tessera.backends.cpu.lowering import EVALUATORS as CPU_LAZY
from tessera.backends.cpu.lowering import SINKS as CPU_SINKS
from tessera.backends.gpu.lowering import LOWERINGS as GPU
from tessera.interp.machine import EVALUATORS as NUMPY
from tessera.ir import Op
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable
from tests.unit.surface_names import LIBDEVICE

_USED = (
    tessera.backends.cpu.function,
    tessera.backends.gpu.module,
    tessera.frontend,
    tessera.interp,
)

# --- A: the host ------------------------------------------------------------------------------------------------
HOST = (
    "AsyncCompileMode aggregate autotune cdiv CompilationError compile Config constexpr_function FutureKernel "
    "heuristics InterpreterError jit JITFunction KernelInterface language MockTensor must_use_result "
    "next_power_of_2 OutOfResources reinterpret runtime TensorWrapper TritonError testing tools knobs"
).split()

# --- C and D: `tl` ------------------------------------------------------------------------------------------------
TYPES = (
    "void int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float8e4nv float8e5 float8e4b8 float8e5b16 "
    "float8e4b15 float16 bfloat16 float32 float64 pointer_type block_type tuple_type constexpr_type "
    "tensor_descriptor_type dtype tensor tuple slice constexpr const pi32_t tensor_descriptor PropagateNan "
    "TRITON_MAX_TENSOR_NUMEL str_to_ty aggregate_replace"
).split()
OPERATIONS = {
    "D1 program model": "program_id num_programs",
    "D2 creation": "arange full zeros zeros_like to_tensor cat",
    "D3 shapes": (
        "reshape view ravel expand_dims squeeze unsqueeze broadcast broadcast_to trans permute join split interleave "
        "flip item swizzle2d"
    ),
    "D4 products": "dot dot_scaled",
    "D5 memory": "load store",
    "D6 block pointers": "make_block_ptr advance",
    "D7 atomics": (
        "atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg atomic_cas atomic_load "
        "atomic_store atomic_poll"
    ),
    "D8 arithmetic": "where add sub mul minimum maximum clamp cdiv expect_zero",
    "D9 mathematics": (
        "exp exp2 log log2 sin cos sqrt sqrt_rn rsqrt erf floor ceil abs fma fdiv div_rn umulhi sigmoid softmax cast"
    ),
    "D10 descriptors": "make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor",
    "D11 reductions": "reduce sum max min argmax argmin xor_sum reduce_or",
    "D12 scans": "associative_scan cumsum cumprod",
    "D13 order": "sort topk bitonic_merge histogram gather",
    "D14 random": (
        "philox_impl philox randint4x randint uint_to_uniform_float rand rand4x pair_uniform_to_normal randn randn4x"
    ),
    "D15 hints": "multiple_of max_contiguous max_constancy assume debug_barrier",
    "D16 debugging": "device_print device_assert static_print static_assert",
    "D17 mapping": "inline_asm_elementwise map_elementwise",
    "B loops": "range static_range condition",
}
MODULES = "core math standard random extra target_info".split()
CORE_ONLY = "extern extern_elementwise builtin _aggregate".split()
DESCRIPTOR_METHODS = (
    "load store gather scatter atomic_add atomic_min atomic_max atomic_and atomic_or atomic_xor"
).split()
CUDA = "globaltimer smid num_warps num_threads gdc_wait gdc_launch_dependents libdevice".split()
HIP = "memrealtime smid num_threads num_warps".split()
TARGET_INFO = "current_target is_cuda is_hip cuda_capability_geq is_hip_cdna3 is_hip_cdna4 is_hip_gfx1250".split()


# Documented refusals: name -> what its docstring says.
REFUSED = {
    "extra.hip.memrealtime": "Not supported", "extra.hip.smid": "Not supported",
    "extra.hip.num_threads": "Not supported", "extra.hip.num_warps": "Not supported",
    "core.extern": "cannot be compiled", "core.extern_elementwise": "other libraries raise",
    "inline_asm_elementwise": "no such meaning for branches, memory and special registers",
}  # fmt: skip


def found(path):
    x = tl
    for part in path.split("."):
        x = getattr(x, part)
    return x


PATHS = [
    *TYPES, *(n for names in OPERATIONS.values() for n in names.split()), *MODULES, *(f"core.{n}" for n in CORE_ONLY),
    *(f"extra.cuda.{n}" for n in CUDA), *(f"extra.hip.{n}" for n in HIP), *(f"target_info.{n}" for n in TARGET_INFO),
    *(f"extra.libdevice.{n}" for n in dict.fromkeys(LIBDEVICE)),
    *(f"extra.cuda.libdevice.{n}" for n in ("sin", "erf", "pow")),
]  # fmt: skip
PLAIN_VALUES = {
    "pi32_t",
    "TRITON_MAX_TENSOR_NUMEL",
    "constexpr",
}  # instances, or a type made elsewhere


@pytest.mark.parametrize("path", PATHS)
def test_name(path):
    x = found(path)
    if path not in PLAIN_VALUES:
        assert inspect.getdoc(x), f"{path} has no docstring"
    if isinstance(x, Builtin) and path not in OPERATIONS["B loops"].split():
        assert x.impl is not None, f"{path} has no implementation"


@pytest.mark.parametrize("name", HOST)
def test_host_name(name):
    x = getattr(tessera, name)
    assert isinstance(x, types.ModuleType) or inspect.getdoc(x)


def test_libdevice_has_all_its_functions():
    assert len({n for n in LIBDEVICE if n != "fast_tanhf"}) == 197  # fast_tanhf is AMD's


def test_all_holds_the_surface():
    wanted = {n for names in OPERATIONS.values() for n in names.split()} | set(TYPES)
    assert wanted - set(tl.__all__) <= {"str_to_ty"}
    assert {n for n in tl.__all__ if not hasattr(tl, n)} == set()


def test_descriptor_methods():
    from tessera.language.values import DESCRIPTOR_METHODS as methods

    assert set(methods) == set(DESCRIPTOR_METHODS)
    assert all(inspect.getdoc(m) for m in methods.values())


@pytest.mark.parametrize("path", REFUSED)
def test_refusals_are_documented(path):
    assert REFUSED[path] in " ".join((inspect.getdoc(found(path)) or "").split())


def test_library_functions_are_written_in_the_language():
    others = [
        p for p in PATHS
        if p.startswith("extra.libdevice.") and not isinstance(found(p), (Builtin, JITCallable))
    ]  # fmt: skip
    assert others == []


# --- the ops behind the names --------------------------------------------------------------------------------------
STRUCTURE = {
    "func",
    "return",
    "yield",
    "condition",
    "if",
    "for",
    "while",
    "call",
}  # lowered as control flow
# Lowered before: descriptors become pointers and masks, checks are made by hand.
DESCRIPTORS = {
    "make_descriptor",
    "descriptor_load",
    "descriptor_store",
    "descriptor_gather",
    "descriptor_scatter",
}
# The front end has other ops for assembly elsewhere; ranks come from a pass that spreads programs over clusters.
ONLY_GPU = {"inline_asm", "volatile_asm", "cta_rank", "directed"}
ONLY_HOST = {"check"}  # checked builds run on the interpreter or on the CPU
ONLY_INTERPRETER = {"breakpoint"}  # stops the interpreter; other targets pass it by


def ops_of_the_front_end():
    from tessera.ops import arith, control, math, memory, special, tile

    found_: dict[str, type[Op]] = {}
    for module in (arith, control, math, memory, special, tile):
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Op) and getattr(cls, "opcode", ""):
                if cls.__module__.startswith("tessera.ops.") and cls.opcode not in STRUCTURE:
                    found_[cls.opcode] = cls
    return found_


OPS = ops_of_the_front_end()


@pytest.mark.parametrize("opcode", OPS)
def test_op_has_a_meaning_everywhere(opcode):
    cls = OPS[opcode]
    assert inspect.getdoc(cls)
    assert cls in NUMPY, "no meaning: `@evaluate` in tessera/interp"
    if opcode not in DESCRIPTORS | ONLY_GPU | ONLY_INTERPRETER:
        known = cls in CPU_LAZY or cls in CPU_SINKS or cpu_elementwise(cls)
        assert known, "no lowering for CPUs: `@lowers` in tessera/backends/elements or cpu"
    if opcode not in DESCRIPTORS | ONLY_HOST | ONLY_INTERPRETER:
        assert cls in GPU, "no lowering for GPUs: `@lowers` in tessera/backends/elements or gpu"


def cpu_elementwise(cls):
    from tessera.backends.cpu.arith import TABLE

    return cls in TABLE


HOST = """
AsyncCompileMode aggregate autotune cdiv CompilationError compile Config constexpr_function FutureKernel heuristics
InterpreterError jit JITFunction KernelInterface language MockTensor must_use_result next_power_of_2 OutOfResources
reinterpret runtime set_allocator TensorWrapper TritonError testing tools knobs
""".split()


@pytest.mark.parametrize("name", HOST)
def test_names_of_the_host_exist(name):
    assert hasattr(tessera, name)


def test_keywords_of_the_random_and_polling_functions():
    def names(function):
        return list(inspect.signature(function.fn).parameters)

    assert names(tl.rand4x) == ["seed", "offsets", "n_rounds"]
    assert names(tl.atomic_poll) == ["pointer", "expected_value", "sem", "scope", "timeout_ns"]
