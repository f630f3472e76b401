"""Machine code of products with operands in every order: products run on, nothing is kept in memory. No GPU needed."""

from __future__ import annotations

from typing import Any

import pytest

import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.backend import NvidiaBackend
from tessera.compiler.source import ASTSource
from tessera.errors import ToolNotFound
from tests.lang.dot_orders_kit import descriptor_product, pointer_product

TYPES = {
    "fp32": ("fp32", tl.float32, 32),
    "i8": ("i32", tl.int32, 128),
    "fp8e5": ("fp16", tl.float32, 128),
}


def assembled(
    fn: Any, signature: dict, constants: dict, warps: int, seen: Any = None
) -> tuple[str, ptxas.Assembled]:
    """PTX and what ptxas makes of it; `seen` gets the GPU-level module."""
    backend = NvidiaBackend(GPUTarget("cuda", 90, 32))
    options = backend.parse_options({"num_warps": warps, "num_stages": 4})
    stages = backend.stages(options)
    aligned = {(fn.arg_names.index(name),): [["tt.divisibility", 16]] for name in signature}
    full = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    product: Any = ASTSource(fn, full, constants, aligned).make_ir(options)
    metadata: dict[str, Any] = {}
    for name in ("tir", "gir", "llir", "ptx"):
        product = stages[name](product, metadata)
        if name == "gir" and seen is not None:
            seen(product)
    try:
        return product, ptxas.assemble(product, "sm_90a")
    except ToolNotFound:
        pytest.skip("needs ptxas")


@pytest.mark.parametrize(("a_turned", "b_turned"), [(0, 1), (0, 0), (1, 1), (1, 0)])
@pytest.mark.parametrize("through", ["pointers", "descriptors"])
@pytest.mark.parametrize("dtype", TYPES)
def test_products_run_on(dtype: str, through: str, a_turned: int, b_turned: int) -> None:
    out, acc, depth = TYPES[dtype]
    rows, cols = (256, 128) if b_turned < 1 else (128, 256)
    signature = {"a": "*" + dtype, "b": "*" + dtype, "c": "*" + out} | dict.fromkeys("MNK", "i32")
    constants: dict[str, Any] = {"BM": rows, "BN": cols, "BK": depth, "ACC": acc}
    kernel = pointer_product
    if through == "descriptors":
        kernel = descriptor_product
        constants |= {"A_TURNED": bool(a_turned), "B_TURNED": bool(b_turned)}
    else:
        for name, one in (
            ("sam", a_turned),
            ("sak", not a_turned),
            ("sbk", b_turned),
            ("sbn", not b_turned),
        ):
            if one:
                constants[name] = 1
            else:
                signature[name] = "i32"
    text, done = assembled(kernel, signature, constants, 8)
    assert not done.warnings
    assert not done.spill_stores
    assert "m64n256" in text or (a_turned and not b_turned)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("rows", [16, 32])
def test_few_rows_are_stored_from_where_they_are(dtype: str, rows: int) -> None:
    """Single 16-bit numbers of the result; products still run on."""
    names = ("a", "b", "c", "M", "N", "K", "sam", "sbk")
    signature = {n: f"*{dtype}" if n in "abc" else "i32" for n in names}
    constants = {"sak": 1, "sbn": 1, "BM": rows, "BN": 64, "BK": 64, "ACC": tl.float32}
    text, done = assembled(pointer_product, signature, constants, 4)
    assert f"m64n{rows}k16" in text
    assert not done.warnings


@pytest.mark.parametrize(
    ("rows", "depth", "turners", "buffers"),
    [(256, 32, 4, []), (256, 64, 0, []), (128, 32, 0, [3]), (128, 128, 0, [])],
)
def test_who_turns_operands(rows: int, depth: int, turners: int, buffers: list[int]) -> None:
    """Further warps for two warpgroups; one alone does it, in three buffers beside two stages if there is room."""
    found: list[int] = []
    teams: list[int] = []

    def look(module: Any) -> None:
        for op in module.walk():
            if op.opcode == "local_alloc" and op.attrs.get("rotates"):
                found.append(op.result.type.shape[0])
            if op.opcode == "warp_specialize":
                teams.append(op.transpose_warps)

    signature = {"a": "*fp32", "b": "*fp32", "c": "*fp32"} | dict.fromkeys("MNK", "i32")
    constants = {"BM": rows, "BN": 128, "BK": depth, "ACC": tl.float32}
    constants |= {"A_TURNED": True, "B_TURNED": False}
    assembled(descriptor_product, signature, constants, rows // 32, look)
    assert found == buffers
    assert max(teams, default=0) == turners


def test_transpose_role_have_registers_of_their_own() -> None:
    """16 warps; consumers keep the results and two operands, turners and the producer little."""
    signature = {"a": "*fp8e4nv", "b": "*fp8e4nv", "c": "*fp16"} | dict.fromkeys("MNK", "i32")
    constants: dict[str, Any] = {"BM": 256, "BN": 128, "BK": 128, "ACC": tl.float32}
    constants |= {"A_TURNED": True, "B_TURNED": False}
    text, done = assembled(descriptor_product, signature, constants, 8)
    assert ".maxntid 512" in text
    assert text.count("setmaxnreg.inc") == 1 and text.count("setmaxnreg.dec") == 2
    assert not done.warnings and not done.spill_stores and done.stack == 0
