"""Matrix instructions, pipelining, allocation and barriers on matmul and attention; meaning by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.analysis.scratch import conversion_plan
from tessera.backends.nvidia.target import facts_for
from tessera.errors import OutOfResources
from tessera.interp import run
from tessera.ir import Module, PassManager, TileType, parse_module
from tessera.layout import RegisterPermute
from tessera.passes.gpu_pipeline import gpu_passes
from tessera.passes.neutral.pipeline import neutral_pipeline
from tests.unit.gpu_modules import attention, matmul
from tests.unit.gpu_passes_kit import compiled, ops

FACTS = facts_for(90)


def in_loop(module: Module, opcode: str) -> list:
    return [op for loop in ops(module, "for") for op in loop.body if op.opcode == opcode]


def product(
    module: Module, dtype: type, acc: type, k: int, bt: bool = False, m: int = 64, n: int = 64
) -> float:
    """Largest error of the module's matmul against NumPy, relative to the largest element."""
    rng = np.random.default_rng(1)
    if np.issubdtype(dtype, np.integer):
        a, b = (rng.integers(-100, 100, s).astype(dtype) for s in ((m, k), (k, n)))
    else:
        a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    c = np.zeros((m, n), acc)
    stored = np.ascontiguousarray(b.T) if bt else b
    run(module, (1,), [a, stored, c, k, a.shape[1], stored.shape[1], n])
    return float(np.abs(c - want).max() / np.abs(want).max())


@pytest.mark.parametrize(
    ("elem", "acc", "bk", "precision", "instruction"),
    [
        ("fp16", "fp32", 32, "ieee", "mma.m16n8k16.f32.f16.f16"),
        ("bf16", "fp32", 32, "ieee", "mma.m16n8k16.f32.bf16.bf16"),
        ("fp16", "fp16", 32, "ieee", "mma.m16n8k16.f16.f16.f16"),
        ("fp32", "fp32", 32, "tf32", "mma.m16n8k8.f32.tf32.tf32"),
        ("i8", "i32", 32, "ieee", "mma.m16n8k32.s32.s8.s8"),
        ("float8e4nv", "fp32", 32, "ieee", "mma.m16n8k32.f32.e4m3.e4m3"),
        ("fp64", "fp64", 16, "ieee", "mma.m8n8k4.f64.f64.f64"),
    ],
)
def test_rows(elem: str, acc: str, bk: int, precision: str, instruction: str) -> None:
    elem = elem.replace("float8e4nv", "fp8e4nv")
    module = compiled(matmul(elem, acc, bk=bk, precision=precision))
    assert [op.instruction for op in ops(module, "mma")] == [instruction]
    assert not ops(module, "dot")


def test_fp16_matmul_is_pipelined() -> None:
    module = compiled(matmul())
    assert len(in_loop(module, "async_copy")) == 2
    assert not in_loop(module, "load")
    assert not in_loop(module, "barrier")  # the wait is the only one
    assert [op.pending for op in ops(module, "async_wait")] == [1, 0]
    assert [r.result.type.shape[0] for r in ops(module, "local_alloc")] == [3, 3]
    assert module.attrs["shared"] == 3 * (64 * 32 + 32 * 64) * 2
    for k in (16, 32, 160):
        assert product(module, np.float16, np.float32, k) < 1e-3


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages(stages: int) -> None:
    module = compiled(matmul(stages=stages))
    assert bool(ops(module, "async_copy")) == (stages > 1)
    assert bool(in_loop(module, "barrier")) == (stages == 1)
    assert product(module, np.float16, np.float32, 96) < 1e-3


def test_stages_shrink_to_what_fits() -> None:
    module = compiled(matmul(bm=128, bn=128, bk=64, warps=8, stages=9), capability=80)
    assert module.attrs["shared"] <= facts_for(80).max_shared_bytes
    assert ops(module, "local_alloc")[0].result.type.shape[0] == 5


def test_transposed_operand_and_nonzero_fill() -> None:
    module = compiled(matmul(b_transposed=True))
    assert product(module, np.float16, np.float32, 80, bt=True) < 1e-3
    module = compiled(matmul(other="float('0x1.0p+0')"))
    assert len(in_loop(module, "async_copy")) == 1  # the load with a fill stays a load
    assert len(in_loop(module, "load")) == 1


@pytest.mark.parametrize(
    ("precision", "mmas", "error"), [("tf32x3", 3, 1e-5), ("bf16x3", 3, 1e-4), ("bf16x6", 6, 1e-5)]
)
def test_sums_of_parts(precision: str, mmas: int, error: float) -> None:
    module = compiled(matmul("fp32", "fp32", precision=precision))
    assert len(in_loop(module, "mma")) == mmas
    assert product(module, np.float32, np.float32, 64) < error


def test_ieee_stays_a_dot() -> None:
    module = compiled(matmul("fp32", "fp32", bk=16))
    assert not ops(module, "mma")
    assert in_loop(module, "dot")[0].attrs["in_place"]
    assert len(in_loop(module, "async_copy")) == 2
    assert product(module, np.float32, np.float32, 48) < 1e-6
    module = compiled(matmul("fp32", "fp32", bm=128, bn=128, bk=32))  # 512 elements of a thread
    assert in_loop(module, "dot")[0].attrs["in_place"]
    assert len(in_loop(module, "async_copy")) == 2


def test_int8() -> None:
    assert product(compiled(matmul("i8", "i32")), np.int8, np.int32, 64) == 0


def test_too_much_shared_memory() -> None:
    with pytest.raises(OutOfResources) as e:
        compiled(matmul(bm=256, bn=256, bk=256, warps=8, stages=1), capability=89)
    assert (e.value.required, e.value.limit) == (256 * 1024, 99 * 1024)
    assert "131072 bytes for load at" in str(e.value)
    # What the first look cannot see is found when buffers get their places.
    module = parse_module(matmul(bm=256, bn=256, bk=256, warps=8, stages=1))
    first, *others = gpu_passes(facts_for(89), pointer_maps=False)
    assert first.name == "check-resources"
    with pytest.raises(OutOfResources, match="local_alloc"):
        PassManager([*neutral_pipeline(), *others]).run(module)


@pytest.mark.parametrize(("bm", "bn", "warps"), [(128, 128, 2), (256, 256, 4), (256, 256, 2)])
def test_results_that_registers_do_not_hold(bm: int, bn: int, warps: int) -> None:
    module = compiled(matmul(bm=bm, bn=bn, warps=warps), 90)
    assert ops(module, "mma")


def test_attention_moves_nothing_between_threads() -> None:
    module = compiled(attention())
    for op in in_loop(module, "convert_layout"):
        assert isinstance(conversion_plan(op, FACTS), RegisterPermute)
    assert len(in_loop(module, "async_copy")) == 2
    assert not in_loop(module, "barrier")
    assert not in_loop(module, "load")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (64, 128, 128))
    out = np.zeros_like(q)
    run(module, (1,), [q, k, v, out, 128])
    s = q.astype(np.float32) @ k.astype(np.float32).T
    p = np.exp(s - s.max(1, keepdims=True))
    want = p @ v.astype(np.float32) / p.sum(1, keepdims=True)
    assert np.abs(out - want).max() < 5e-3


# --- instructions of warpgroups ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("elem", "acc", "transposed", "instruction"),
    [
        ("fp16", "fp32", False, "wgmma.m64k16.f32.f16.f16"),
        ("bf16", "fp32", True, "wgmma.m64k16.f32.bf16.bf16"),
        ("i8", "i32", True, "wgmma.m64k32.s32.s8.s8"),
        ("fp32", "fp32", True, "wgmma.m64k8.f32.tf32.tf32"),
    ],
)
def test_warpgroup_rows(elem: str, acc: str, transposed: bool, instruction: str) -> None:
    module = compiled(matmul(elem, acc, precision="tf32", b_transposed=transposed), 90)
    (product,) = ops(module, "wgmma")
    assert product.instruction == instruction
    assert not in_loop(module, "local_load")


def test_operands_in_another_order_than_the_instruction_reads() -> None:
    """8- and 32-bit operands along N come through registers, as the first ones; the pipeline goes on."""
    for elem, acc, dtype, error in (
        ("i8", "i32", np.int8, 0.0), ("fp32", "fp32", np.float32, 1e-3),
    ):  # fmt: skip
        text = matmul(
            elem,
            acc,
            bm=128,
            bn=128,
            bk=128 // np.dtype(dtype).itemsize,
            warps=8,
            stages=4,
            precision="tf32",
        )
        module = compiled(text, 90)
        (op,) = ops(module, "wgmma")
        assert op.transposed
        assert op.pending == 1
        (read,) = in_loop(module, "local_load")
        assert read.result is op.b
        order = [x.opcode for x in op.parent if x.opcode in ("async_copy", "local_load", "wgmma")]
        assert order == ["async_copy", "async_copy", "local_load", "wgmma"]
        assert (
            product(module, dtype, np.int32 if acc == "i32" else np.float32, 192, m=128, n=128)
            <= error
        )


def test_few_rows() -> None:
    """Products of less than 64 rows are transposed, if there are 64 columns and no other product looks at them."""
    (op,) = ops(compiled(matmul(bm=16, bn=64), 90), "wgmma")
    assert op.transposed
    assert not ops(compiled(matmul(bm=32, bn=32), 90), "wgmma")


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_products_run_on(stages: int) -> None:
    module = compiled(matmul(bm=128, bn=128, bk=64, warps=8, stages=stages), 90)
    *firsts, last = ops(module, "wgmma")
    assert last.pending == (1 if stages == 4 else 0)  # three stages leave room for two programs
    assert [op.part for op in (*firsts, last)] == ([(0, 2), (1, 2)] if stages == 4 else [(0, 1)])
    for op in firsts:  # the copies stand between the halves
        assert op.asynchronous
        assert op.result.users() == [last]
        between = [x.opcode for x in last.parent]
        places = [i for i, name in enumerate(between) if name in ("wgmma", "async_copy")]
        assert [between[i] for i in places] == ["wgmma", "async_copy", "async_copy", "wgmma"]
    assert len(ops(module, "wgmma_wait")) == 1
    for k in (0, 64, 320):
        assert product_error(module, k) < 1e-3


def product_error(module: Module, k: int) -> float:
    return product(module, np.float16, np.float32, k, m=128, n=128) if k else 0.0


def test_attention_keeps_weights_in_registers() -> None:
    module = compiled(attention(m=128, n=64, warps=8), 90)
    first, second = ops(module, "wgmma")
    assert not isinstance(first.a.type, TileType)
    assert isinstance(second.a.type, TileType)
    for op in in_loop(module, "convert_layout"):
        assert isinstance(conversion_plan(op, FACTS), RegisterPermute)
