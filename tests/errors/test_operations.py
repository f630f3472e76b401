"""What operations answer to wrong arguments: the class and the message, and for some the full text."""

# ruff: noqa: E501  messages stand as they are printed
from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tessera import errors
from tests.errors.kernel_source import OPTIONS, error_of, load_kernel, lower, text_of
from tests.errors.operations import TEXTS

T, S, A, C = errors.TypeMismatch, errors.ShapeMismatch, errors.InvalidArgument, errors.NotConstexpr

# The body of `def k(p, n, f)` with p: *fp32, n: int32, f: fp32; `t` is a tile of 16 fp32, `i` one of 16 int32.
CASES = {
    # program model and creation
    "tl.program_id(3)": (A, "program_id axis must be 0, 1, or 2 but got 3"),
    "tl.num_programs(n)": (C, "the axis of num_programs() must be known at compile time, got int32"),
    "tl.arange(0, n)": (C, "arange's arguments must be of type tl.constexpr"),
    "tl.arange(0, 2**31)": (A, "arange must fit in int32"),
    "tl.arange(4, 4)": (A, "arange's end argument must be greater than the start argument"),
    "tl.arange(0, 12)": (A, "arange's range must be a power of 2, got 12"),
    "tl.zeros((16, n), tl.float32)": (C, "Shape element 1 must have type `constexpr[int]`"),
    "tl.zeros((16, 12), tl.float32)": (S, "Shape element 1 must be a power of 2, got 12"),
    "tl.zeros((2048, 1024), tl.float32)": (S, "numel (2097152) exceeds triton maximum tensor numel (1048576)"),
    "tl.full((16,), t, tl.float32)": (S, "full() takes a scalar value"),
    'tl.zeros((16,), "fp32")': (A, "expected a dtype such as tl.float32, got 'fp32'"),
    # operators
    "p + p": (T, "cannot add pointers together"),
    "p * n": (T, "invalid operands of type pointer<fp32> and tessera.language.int32"),
    "t & i": (T, "invalid operands of type tessera.language.float32 and tessera.language.int32"),
    "t // 2": (T, "unexpected type fp32"),
    "i / i.to(tl.uint32)": (T, "Cannot use /, #, or % with int32 and uint32 because they have different signedness"),
    "(i > 0) / 2": (T, "Cannot use /, #, or % with int1 and int32 because they have different signedness"),
    "i.to(tl.int8) + 300": (T, "Scalar 300 is out of range for type int8"),
    "i.to(tl.uint8) * -1": (T, "Cannot perform a binary operation between an unsigned tensor and a negative scalar"),
    "t.to(tl.float8e5) + i": (T, "unexpected type fp8e5 and int32"),
    "-p": (T, "wrong type argument to unary minus"),
    "~t": (T, "wrong type argument to unary invert: fp32"),
    "n and f": (T, "Cannot bitcast data-type of size 32 to data-type of size 1"),
    "not n": (T, "Cannot bitcast data-type of size 32 to data-type of size 1"),
    "p < p": (T, "invalid operands of type pointer<fp32>"),
    "t + tl.arange(0, 32)": (S, "Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32"),
    # casts and math
    "t.to(tl.int8, bitcast=True)": (T, "Cannot bitcast data-type of size 32 to data-type of size 8"),
    'i.to(tl.float32, fp_downcast_rounding="rtz")': (T, "fp_downcast_rounding should be set only for truncating fp conversions"),
    't.to(tl.float16, fp_downcast_rounding="up")': (A, "expected 'rtne' or 'rtz', got 'up'"),
    "p.to(tl.int32)": (T, "cannot cast pointer<fp32> to int32"),
    "t.to(tl.float8e5).to(tl.int32)": (T, "cannot cast fp8e5 to int32"),
    "t.to(tl.float8e4b8)": (T, "type fp8e4b8 not supported in this architecture"),
    "tl.exp(t.to(tl.float16))": (T, "Expected dtype ['fp32', 'fp64'] but got fp16"),
    "tl.sqrt(i)": (T, "Expected dtype ['fp32', 'fp64'] but got int32"),
    "tl.fdiv(t, i)": (T, "both operands of fdiv must have floating scalar type"),
    "tl.umulhi(t, t)": (T, "but got fp32"),
    "tl.maximum(t, t, propagate_nan=1)": (T, "propagate_nan must be a tl.PropagateNan"),
    "tl.extra.libdevice.pow(t.to(tl.float16), 2)": (T, "libdevice.pow takes fp32 or fp64, got fp16 and int32"),
    "(1, 2) * 2**62": (T, "the operator `*` is not supported between tuple<"),
    "2**70 * (1, 2)": (T, "the operator `*` is not supported between constexpr["),
    "range(1, 2.5)": (T, "range() takes one to three ints, got (constexpr[1], constexpr[2.5])"),
    "tl.extra.libdevice.exp2(i)": (T, "libdevice.exp2 takes fp32 or fp64, got int32"),
    # shapes
    "tl.reshape(t, (8, 4))": (S, "reshape() cannot change total number of elements in tensor"),
    "tl.broadcast_to(t, (16, 16))": (S, "Cannot broadcast, rank mismatch: [16], [16, 16]"),
    "tl.broadcast_to(t, (32,))": (S, "the expanded size of the tensor (32) must match the existing size (16)"),
    "tl.trans(t)": (S, "tl.trans invoked with a 0- or 1-dimensional tensor"),
    "tl.permute(t[:, None], 0, 0)": (S, "permuted dims [0, 0] must be a permutation"),
    "tl.expand_dims(t, (0, 0))": (A, "expand_dims received duplicate axes"),
    "tl.expand_dims(t, 3)": (A, "invalid axis 3. Expected -2 <= axis < 2"),
    "tl.split(t)": (S, "split() needs a last dimension of extent 2, got [16]"),
    "tl.join(t, i)": (T, "join() takes two tensors of one dtype, got fp32 and int32"),
    "tl.squeeze(t, 0)": (S, "squeeze() drops dimensions of extent 1"),
    "t[0]": (errors.UnsupportedLanguageConstruct, "unsupported tensor index: 0"),
    "t[0:4]": (errors.UnsupportedLanguageConstruct, "unsupported tensor index: 0:4"),
    "t.item()": (S, "item() takes a tensor of one element"),
    # reductions
    "tl.sum(t, axis=1)": (A, "invalid axis 1. Expected -1 <= axis < 1"),
    "tl.flip(t, 1)": (A, "invalid axis 1. Expected -1 <= axis < 1"),
    "tl.argmax(t, 2)": (A, "invalid axis 2. Expected -1 <= axis < 1"),
    "tl.sort(t, -2)": (A, "invalid axis -2. Expected -1 <= axis < 1"),
    "tl.sum(n)": (S, "reduce() takes tiles, got a scalar"),
    "tl.xor_sum(t, 0)": (errors.CompileTimeAssertionFailure, "xor_sum only supported for integers"),
    "tl.max(t, return_indices=True)": (errors.CompileTimeAssertionFailure, "an axis is needed to return indices"),
    "tl.sort(t[:, None], 0)": (errors.CompileTimeAssertionFailure, "only minor dimension is currently supported"),
    "tl.histogram(t, 16)": (T, "histogram only supports integer input"),
    "tl.histogram(i, 12)": (A, "12 is not a power of 2"),
    "tl.gather(t, t, 0)": (T, "index must be an integer tensor"),
    # dot
    "tl.dot(t, t)": (S, "input and other must have equal ranks >= 2, got [16] and [16]"),
    "tl.dot(t[:, None], t[:, None])": (S, "input and other must have equal reduction dimensions, got [16, 1] and [16, 1]"),
    "tl.dot(t[None, :], t[:, None], out_dtype=tl.pointer_type(tl.int8))": (A, "expected a type of numbers, got pointer<int8>"),
    "tl.dot(t[None, :].to(tl.float16), t[:, None].to(tl.float16), out_dtype=tl.int32)": (T, "out_dtype=int32 is unsupported"),
    "tl.dot(t[None, :], t[:, None], out_dtype=tl.bfloat16)": (T, "cast with `.to(tl.bfloat16)`"),
    "tl.dot(t[:, None], t[None, :])": (S, "Input shapes should have M >= 1, N >= 1 and K >= 8, got [16, 1] and [1, 16]"),
    # memory
    "tl.load(n)": (T, "Unsupported ptr type int32[] in `tl.load`"),
    "tl.load(p + i, other=0.0)": (A, "`other` cannot be provided without `mask`"),
    "tl.load(p, mask=i > 0)": (S, "Mask argument cannot be block type if pointer argument is not a block"),
    "tl.load(p + i, mask=i)": (T, "Mask must have boolean scalar type, got int32"),
    "tl.load(p + i, boundary_check=(0,))": (A, "`padding_option` or `boundary_check` argument is not supported"),
    'tl.load(p + i, cache_modifier=".xx")': (A, "'.xx' is not one of"),
    'tl.load(p + i, eviction_policy="evict_normally")': (A, "'evict_normally' is not one of"),
    "tl.store(p, t)": (S, "Value argument cannot be block type if pointer argument is not a block"),
    "tl.store(p + i[:, None], t[None, :])": (S, "Expected pointer argument to have shape [16, 16] but got [16, 1]"),
    "tl.store(n, 1)": (T, "Unsupported ptr type int32[] in `tl.store`"),
    'tl.atomic_add(p, 1.0, sem="weak")': (A, "Memory semantic weak not supported"),
    "tl.atomic_add((p + i).to(tl.pointer_type(tl.int16)), 1)": (T, "atomic_add does not support int16"),
    "tl.atomic_cas(p, 0, 1)": (T, "cmp of atomic_cas must have the type fp32 of the elements, got i32"),
    "tl.make_tensor_descriptor(p, (n, n), (n, n), (16, 16))": (S, "Tensor descriptor last dim must be 1 but got int32[]"),
    "tl.make_tensor_descriptor(p, (n,), (1,), (2,))": (S, "at least 16 bytes in the last dimension"),
    # hints and debugging
    "tl.multiple_of(i, (8, 8))": (S, "Shape of input to multiple_of does not match the length of values"),
    "tl.max_constancy(n, 4)": (S, "max_constancy() takes tiles"),
    "tl.multiple_of(i, n)": (C, "the values of multiple_of() must be known at compile time"),
    "tl.assume(n)": (T, "assume() takes an int1 scalar"),
    'tl.static_assert(1, "one")': (C, "Assertion condition could not be determined at compile-time"),
    'tl.static_assert(2 + 2 == 5, "arithmetic")': (errors.CompileTimeAssertionFailure, "arithmetic"),
    "tl.device_print(n)": (C, "the prefix of device_print() must be known at compile time"),
    'tl.inline_asm_elementwise("", "", [t], (), True, 1)': (A, "inline_asm_elementwise must have at least one output"),
    "tl.rand(0.5, i)": (errors.CompileTimeAssertionFailure, "the seed of a random function must be an integer"),
}  # fmt: skip

SOURCE = """
@jit
def k(p, n, f):
    i = tl.arange(0, 16)
    t = i.to(tl.float32)
    x = {expression}
"""


@pytest.mark.parametrize("expression", CASES)
def test_message(tmp_path: Path, expression: str):
    kind, message = CASES[expression]
    source = (
        SOURCE.replace("x = ", "")
        if expression.startswith(("tl.store", "tl.static", "tl.device", "tl.assume"))
        else SOURCE
    )
    error = error_of(tmp_path, source.format(expression=expression))
    assert type(error) is kind
    assert re.search(re.escape(message), error.message), error.message
    assert error.loc is not None
    text = text_of(tmp_path, error)
    assert "kernel.py:8:" in text


@pytest.mark.parametrize("expression", TEXTS)
def test_full_text(tmp_path: Path, expression: str):
    error = error_of(tmp_path, SOURCE.format(expression=expression))
    assert text_of(tmp_path, error) == textwrap.dedent(TEXTS[expression]).strip("\n")


ASM = 'tl.inline_asm_elementwise("abs.f32 $0, $1;", "=f,f", [t], tl.float32, True, 1)'


@pytest.mark.parametrize("expression", [ASM, 'tl.load(p + i, eviction_policy="evict_normal")'])
def test_accepted_on_nvidia(tmp_path: Path, expression: str):
    assert lower(load_kernel(tmp_path, SOURCE.format(expression=expression))).functions


def test_inline_asm_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OPTIONS, "backend_name", "cpu")
    assert lower(load_kernel(tmp_path, SOURCE.format(expression=ASM))).functions
    error = error_of(tmp_path, SOURCE.format(expression=ASM.replace("$1;", "%clock;")))
    assert type(error) is errors.UnsupportedLanguageConstruct
    text = "inline_asm_elementwise is PTX, and 'abs.f32 $0, %clock' is known on NVIDIA GPUs only"
    assert text in text_of(tmp_path, error)
    assert "help: write the computation with tl operations" in text_of(tmp_path, error)


def test_an_error_inside_a_library_function_shows_the_call(tmp_path: Path):
    text = text_of(tmp_path, error_of(tmp_path, SOURCE.format(expression="tl.softmax(i)")))
    assert "8 |     x = tl.softmax(i)" in text
    assert "reductions.py" in text


def test_a_reduction_that_changes_the_dtype(tmp_path: Path):
    source = """
    @jit
    def widen(a, b):
        return (a + b).to(tl.float64)

    @jit
    def k(p):
        t = tl.arange(0, 16)
        x = tl.reduce(t, 0, widen)
    """
    error = error_of(tmp_path, source)
    assert type(error) is T
    assert (
        "the combine function of reduce() returns (fp64) for elements of type (int32)"
        in error.message
    )


def test_a_dropped_block_pointer(tmp_path: Path):
    source = """
    @jit
    def k(p, n):
        b = tl.make_block_ptr(p, (n,), (1,), (0,), (16,), (0,))
        tl.advance(b, (16,))
    """
    with pytest.warns(DeprecationWarning, match="make_block_ptr"):
        error = error_of(tmp_path, source)
    assert "The result of tl.advance is not being used" in error.message
