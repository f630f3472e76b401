"""64-bit indexing: offsets that wrap in 32 bits are right, other uses keep their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import LaunchError
from tessera.frontend import lower_kernel
from tessera.interp import Machine, Memory
from tessera.interp.machine import kernel_of, run_program
from tessera.ir import PassManager, verify
from tessera.language.callable import JITCallable as jit
from tessera.passes import neutral_pipeline
from tessera.passes.neutral.wide_index import wide_index
from tessera.runtime.arguments.specialize import WIDE, constants_and_attrs, specialize
from tests.errors.kernel_source import OPTIONS

FAR = 1 << 30


class Addresses(Memory):
    """Memory that records what is stored where, and touches nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, int] = {}

    def load(self, address: Any, elem: Any, mask: Any, other: Any) -> Any:
        return np.ones(np.shape(address), np.int8)

    def store(self, address: Any, value: Any, elem: Any, mask: Any) -> None:
        on = np.broadcast_to(True if mask is None else mask, np.shape(address))
        for a, v in zip(
            np.asarray(address)[on].ravel(),
            np.broadcast_to(value, on.shape)[on].ravel(),
            strict=True,
        ):
            self.seen[int(a)] = int(v)


def stores(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    args: list[Any],
    program: int,
    wide: bool,
) -> dict[int, int]:
    """Offset → value of what one program stores; the base pointer is 0."""
    module = lower_kernel(kernel, signature, constants, {}, OPTIONS)
    if wide:
        wide_index(module)
        verify(module)
    PassManager(neutral_pipeline(), True).run(module)
    memory = Addresses()
    values = [np.asarray(a, k) for a, k in args]
    run_program(
        Machine(module, memory, (1 << 20, 1, 1)), kernel_of(module), values, (program, 0, 0)
    )
    return memory.seen


@jit
def flat(p, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(p + offs, (offs & 127).to(tl.int8), mask=offs < n)


@pytest.mark.parametrize(("n", "kind"), [((1 << 32) + 2, "i64"), ((1 << 31) - 6, "i32")])
def test_masked_offsets_past_2_to_31(n: int, kind: str):
    B = 16
    for program in (0, n // B):
        args = [(0, np.int64), (n, np.int64 if kind == "i64" else np.int32)]
        seen = stores(
            flat, {"p": "*i8", "n": kind, "B": "constexpr"}, {"B": B}, args, program, True
        )
        want = [i for i in range(program * B, program * B + B) if i < n]
        assert seen == {i: i & 127 for i in want}
    if kind == "i64":  # the test sees the wrap without the pass
        wrapped = stores(
            flat, {"p": "*i8", "n": kind, "B": "constexpr"}, {"B": B}, args, program, False
        )
        assert min(wrapped, default=0) < n - B


@jit
def strided(p, rows, stride, B: tl.constexpr):
    row = tl.program_id(0) * 2
    col = tl.arange(0, B)
    near = 0
    far = row
    for k in range(rows):
        near, far = far, near + 3
        if k == 1:
            far = far + 7
        at = tl.maximum(far, near) * stride + (col[None, :] + k // 2)
        tl.store(p + at, k)
    while far < row + 40:
        far += 20
        tl.store(p + far * stride, 90)
    x = tl.where(row > 5, row, 1) * stride
    tl.store(p + x + (-1), 91)
    tl.store(p + 5, (row * stride) >> 20)  # what is no address stays 32 bits wide


def strided_in_python(row: int, rows: int, stride: int, B: int) -> dict[int, int]:
    out: dict[int, int] = {}
    near, far = 0, row
    for k in range(rows):
        near, far = far, near + 3
        if k == 1:
            far = far + 7
        for c in range(B):
            out[max(far, near) * stride + c + k // 2] = k
    while far < row + 40:
        far += 20
        out[far * stride] = 90
    out[(row if row > 5 else 1) * stride - 1] = 91
    value = (row * stride) & 0xFFFFFFFF
    value = value - (1 << 32) if value >= 1 << 31 else value
    out[5] = int(np.int32(value >> 20).astype(np.int8))
    return out


@pytest.mark.parametrize("stride", [3, (1 << 28) + 1])
@pytest.mark.parametrize("program", [0, 1, 40])
def test_offsets_through_control_flow(program: int, stride: int):
    signature = {"p": "*i8", "rows": "i32", "stride": "i32", "B": "constexpr"}
    args = [(0, np.int64), (4, np.int32), (stride, np.int32)]
    seen = stores(strided, signature, {"B": 4}, args, program, True)
    assert seen == strided_in_python(program * 2, 4, stride, 4)


# --- the flag --------------------------------------------------------------------------------------------------
class Huge:
    """An array whose storage is large; nothing reads it."""

    dtype = np.dtype(np.int8)

    def __init__(self, nbytes: int, dtype: Any = np.int8):
        self.nbytes, self.dtype = nbytes, np.dtype(dtype)

    def data_ptr(self) -> int:
        return 64

    def untyped_storage(self) -> Any:
        storage = self

        class Storage:
            def nbytes(self) -> int:
                return storage.nbytes

        return Storage()


def test_storage_decides():
    assert specialize(Huge(WIDE - 1)) == ("*i8", "D")
    assert specialize(Huge(WIDE)) == ("*i8", "DW")
    assert specialize(Huge(WIDE, np.float32)) == ("*fp32", "D")  # fewer elements than bytes
    assert specialize(Huge(WIDE * 4, np.float32)) == ("*fp32", "DW")
    _, attrs = constants_and_attrs(("*i8", "i32"), ("DW", "D"))
    assert attrs == {(0,): [["tt.divisibility", 16], ["wide", 1]], (1,): [["tt.divisibility", 16]]}


@tessera.jit
def copy(x, out, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + offs, tl.load(x + offs, mask=offs < n), mask=offs < n)


def test_option_forces_it(device: Any):
    x, out = device.array(np.arange(100, dtype=np.int32)), device.array(np.zeros(100, np.int32))
    kernel = copy[(4,)](x, out, 100, 32, index_bits=64)
    np.testing.assert_array_equal(device.numpy(out), np.arange(100))
    assert "xi64" in kernel.asm["tir"]
    assert "xi64" not in copy[(4,)](x, out, 100, 32).asm["tir"]
    with pytest.raises(LaunchError, match="index_bits must be 32 or 64"):
        copy[(4,)](x, out, 100, 32, index_bits=48)


def test_view_of_a_large_array(monkeypatch: pytest.MonkeyPatch, device: Any):
    monkeypatch.setattr("tessera.runtime.arguments.specialize.WIDE", 1 << 12)
    monkeypatch.setattr("tessera.runtime.arguments.specialize._POINTER", {})
    x, out = device.array(np.arange(1 << 13, dtype=np.int8)), device.array(np.zeros(64, np.int8))
    kernel = copy[(2,)](x[100:150], out, 50, 32)
    np.testing.assert_array_equal(device.numpy(out)[:50], device.numpy(x)[100:150])
    assert "xi64" in kernel.asm["tir"]


@pytest.mark.gpu
def test_more_than_2_to_31_elements(device: Any):
    import torch

    n = (1 << 31) + 4096 + 7
    x = torch.zeros(n, dtype=torch.int8, device="cuda")
    x[-5000:] = torch.arange(5000, device="cuda") % 100
    out = torch.zeros(n, dtype=torch.int8, device="cuda")
    B = 4096
    copy[(tessera.cdiv(n, B),)](x, out, n, B)
    assert torch.equal(x, out)
