"""The `tl` namespace: complete, documented, and every operation implemented."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest

import tessera.frontend  # noqa: F401  registers the implementations
import tessera.language as tl
from tessera.errors import HostOnly, KernelOnly
from tessera.language import arithmetic, atomics, combine, creation, hints, memory
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable
from tessera.language.extra import cuda, hip, libdevice
from tessera.language.values import DESCRIPTOR_METHODS, METHODS

MODULES = (
    arithmetic,
    atomics,
    combine,
    creation,
    hints,
    memory,
    libdevice,
    cuda,
    hip,
    tl.target_info,
    tl.standard,
    tl.random,
)
BUILTINS = {
    f"{m.__name__}.{n}": x for m in MODULES for n, x in vars(m).items() if isinstance(x, Builtin)
}
PARTS_OF_STATEMENTS = {"range", "static_range", "condition"}

TENSOR_METHODS = (
    "abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or "
    "atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather "
    "histogram item log log2 logical_and logical_or max min permute ravel reduce reduce_or reshape rsqrt sigmoid sin "
    "softmax sort split sqrt sqrt_rn store sum to trans view xor_sum"
)


@pytest.mark.parametrize("name", BUILTINS)
def test_every_operation_is_implemented_and_documented(name: str):
    stub = BUILTINS[name]
    assert stub.__doc__
    if stub.__name__ not in PARTS_OF_STATEMENTS:
        assert stub.impl is not None


def test_exports_exist_and_are_documented():
    for name in tl.__all__:
        x: Any = getattr(tl, name)
        if isinstance(x, (Builtin, JITCallable, types.ModuleType, type)):
            assert x.__doc__, name
    assert len(set(tl.__all__)) == len(tl.__all__)
    assert set(tl.core.__all__) <= set(dir(tl.core))


def test_methods_are_those_of_the_language():
    assert set(TENSOR_METHODS.split()) == set(METHODS)
    assert set(DESCRIPTOR_METHODS) == {
        "load", "store", "gather", "scatter", "atomic_add", "atomic_min", "atomic_max", "atomic_and", "atomic_or",
        "atomic_xor",
    }  # fmt: skip


def test_methods_take_the_tensor_first():
    for name, fn in METHODS.items():
        first = next(iter(fn.signature.parameters.values()))
        assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, name


def test_operations_are_refused_on_the_host():
    with pytest.raises(KernelOnly, match=r"Did you forget to add @tessera\.jit"):
        tl.load(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(HostOnly):
        tl.sum(None)  # pyright: ignore[reportArgumentType]


def test_dtype_names():
    assert repr(tl.float16) == "tessera.language.float16"
    assert str(tl.float8e4nv) == "fp8e4nv"
    assert tl.pi32_t == tl.pointer_type(tl.int32)
    assert tl.TRITON_MAX_TENSOR_NUMEL == 1048576
    assert tl.block_type(tl.float32, [16, 8]).numel == 128
    assert tl.core.constexpr(tl.float32) == tl.float32


def test_help_shows_the_parameters():
    assert repr(tl.load).startswith("<builtin load(pointer, mask=None, other=None, ")
    assert repr(tl.sum) == (
        "<function sum(input, axis=None, keep_dims=False, dtype=None) of the language>"
    )
