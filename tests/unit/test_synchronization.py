"""The checker of synchronisation: silent on what the compiler makes, loud on every break of it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.analysis.synchronization import Coverage, check_synchronization
from tessera.errors import SynchronizationError
from tessera.ir import Module, Op, parse_module
from tessera.ops import (
    RELEASES,
    AtomicCasOp,
    AtomicRmwOp,
    BarrierOp,
    ForOp,
    LocalAllocOp,
    LocalIndexOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    TensorCopyOp,
    WarpSpecializeOp,
    WgmmaOp,
    WhileOp,
)
from tessera.passes.gpu_mma import async_mma
from tests.unit.gpu_modules import attention
from tests.unit.gpu_passes_kit import compiled
from tests.unit.specimens import gpu_ir
from tests.unit.synchronization_breaks import Break, breaks
from tests.unit.tensor_maps_kit import persistent, product
from tests.unit.transposed_operands_kit import transposed_product as turned

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import run_all


def example(name: str, index: int, arch: int) -> Callable[[], Module]:
    """A kernel of the examples."""
    path = next(p for p in run_all.example_files() if p.stem.startswith(name))
    return lambda: gpu_ir(run_all.load(path).specimens()[index], arch)


def text_of(make: Callable[[], Any]) -> Callable[[], Module]:
    """A kernel that a test compiles."""
    return lambda: parse_module(make().asm["gir"])


@tessera.jit
def scaled_rows(n, a, b, scale, out):
    i, j = tl.arange(0, 32), tl.arange(0, 64)
    first = tl.make_tensor_descriptor(a, [32, 32], [32, 1], [32, 16])
    second = tl.make_tensor_descriptor(b, [32, 64], [64, 1], [16, 64])
    by = tl.load(scale + i)
    acc = tl.zeros((32, 64), tl.float32)
    for step in range(n):
        x = (first.load([0, step * 16]).to(tl.float32) * by[:, None]).to(tl.bfloat16)
        acc = tl.dot(x, second.load([step * 16, 0]), acc)
    tl.store(out + i[:, None] * 64 + j[None, :], acc)


def rows_scaled() -> Module:
    """Tiles that the TMA unit brings and threads read."""
    signature = {"n": "i32", "a": "*bf16", "b": "*bf16", "scale": "*fp32", "out": "*fp32"}
    specimen = SimpleNamespace(
        kernel=scaled_rows, constants={}, signature=signature, options={"num_warps": 4}
    )
    return gpu_ir(specimen, 90)


QUICK: dict[str, Callable[[], Module]] = {
    "softmax": example("02", 1, 90),
    "matmul, cp.async": example("03", 1, 80),
    "matmul, TMA unit": example("03", 1, 90),
    "layer norm, backward": example("05", 1, 90),
    "persistent matmul": example("11", 0, 90),
    "attention": example("12", 4, 90),
    "attention, backward": example("12", 2, 90),
    "reads by threads": rows_scaled,
    "arrivals of copies": lambda: compiled(attention(m=128, n=64, warps=8, stages=3), 90),
    "transpose role": text_of(lambda: turned(256, 128)),
    "cluster": text_of(lambda: product(persistent, 128, 64, 64, False, num_warps=4, num_ctas=2)),
}  # fmt: skip
ALL = {
    f"{path.stem} {i} sm_{arch}": example(path.stem, i, arch)
    for path in run_all.example_files()
    for i, specimen in enumerate(run_all.load(path).specimens())
    for arch in specimen.capabilities
}


@pytest.fixture(scope="module")
def made() -> dict[str, Module]:
    return {}


def _module(made: dict[str, Module], name: str) -> Module:
    if name not in made:
        made[name] = QUICK[name]()
    return made[name]


EXPLAINED = {
    ("10-stream-k-matmul 0 sm_90", "deletion of barrier", "if"): (
        "the branch is taken for the program's first tile only, before which nobody has used these bytes"
    ),
    ("10-stream-k-matmul 0 sm_90", "delay of barrier", "if"): "the same",
    ("12-attention-descriptors 1 sm_90", "haste of mbarrier_arrive", "for"): (
        "the producer fills this ring after one whose buffers are given back later in the iteration, behind the"
        " product that reads this one"
    ),
}
"""By kernel, break and place: breaks whose harmlessness was found by hand."""


# --- breaks ---------------------------------------------------------------------------------------------------
def unreported(module: Module, name: str) -> list[str]:
    """Breaks of a module that are not reported, and why they need not be; without a reason the test fails."""
    coverage = check_synchronization(module)
    found: list[str] = []
    for broken in breaks(module):
        try:
            check_synchronization(broken.module)
        except SynchronizationError:
            continue
        place = name, f"{broken.what} of {broken.op.opcode}", _around(broken.op)
        reason = why_redundant(broken, module, coverage) or EXPLAINED.get(place)
        assert reason, f"not reported: {broken.text}"
        found.append(f"{broken.text}: {reason}")
    return found


def _around(op: Op) -> str:
    parent = op.parent_op()
    return parent.opcode if parent is not None else ""


def why_redundant(broken: Break, module: Module, coverage: Coverage) -> str:
    """Why a program is still right with a part of its synchronisation broken; "" if it is not known to be."""
    op = broken.op
    if op in coverage.missed or not coverage.runs:
        return "it never runs: its branch cannot be taken, or its loop has no iteration"
    if op in coverage.idle:
        return "nobody waits for this arrival, or who waits here knows already that the phase has ended"
    if isinstance(op, MbarrierInitOp) and not _waited_for(broken, module, coverage):
        return "it never runs: nobody comes to wait there"
    if broken.what.startswith(("missing fence", "missing wait for reads")):
        if other_fence(broken):
            return "another fence of the same warps stands between what this one orders"
        return "bytes that threads touch by themselves nobody touches through the other path"
    if isinstance(op, BarrierOp):
        if op.loc is not None and "debug_barrier" in linecache.getline(op.loc.file, op.loc.line):
            return "the author's own barrier orders arrays in global memory, which is not followed"
        if op.attrs.get("global_memory"):
            return "it orders arrays in global memory, which is not followed"
        if isinstance(op.next, AtomicRmwOp | AtomicCasOp) and op.next.sem in RELEASES:
            return "the scalar atomic behind it begins with a barrier of its own"
        if broken.what == "delay" and isinstance(op.parent_op(), ForOp | WhileOp):
            return "at the end of the loop's body it still stands before what it guards in the next iteration"
        if one_warpgroup(module):
            return "the only warpgroup has waited for its products, and reads nothing else there"
    return ""


def _waited_for(broken: Break, module: Module, coverage: Coverage) -> bool:
    """Whether somebody waits at the row of barriers whose count is wrong."""
    assert isinstance(broken.op, MbarrierInitOp)
    row = broken.op.bars[int(broken.what.rsplit(" ", 1)[-1])]
    waits = [op for op in module.walk() if isinstance(op, MbarrierWaitOp) and op.bars is row]
    return any(op not in coverage.missed for op in waits)


def other_fence(broken: Break) -> bool:
    """Whether the break is reported when the program's other fences are missing, too."""
    without = broken.module.clone()
    for op in without.walk():
        if op.attrs.get("proxy"):
            op.attrs["proxy"] = False
    return reported(without)


def one_warpgroup(module: Module) -> bool:
    teams = any(isinstance(op, WarpSpecializeOp) for op in module.walk())
    return teams and module.attrs["num_warps"] <= 4


def reported(module: Module) -> bool:
    try:
        check_synchronization(module)
    except SynchronizationError:
        return True
    return False


@pytest.mark.parametrize("name", QUICK)
def test_every_break_is_reported(made: dict[str, Module], name: str) -> None:
    module = _module(made, name)
    count = sum(1 for _ in breaks(module))
    assert count > 1 and len(unreported(module, name)) <= count // 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_break_of_the_examples_is_reported(name: str) -> None:
    unreported(ALL[name](), name)


# --- places ---------------------------------------------------------------------------------------------------
def _moved(module: Module, by: int) -> Module:
    """With all buffers that copies fill further on by so many bytes."""
    broken = module.clone()
    filled = {op.shared for op in broken.walk() if isinstance(op, TensorCopyOp)}
    roots = {v.op.ring.op for v in filled if isinstance(v.op, LocalIndexOp)}
    for op in roots:
        assert isinstance(op, LocalAllocOp)
        op.offset += by
    broken.attrs["shared"] += by
    return broken


@pytest.mark.parametrize("by", [16, 64, 128, 512])
def test_a_swizzle_begins_with_its_pattern(made: dict[str, Module], by: int) -> None:
    with pytest.raises(SynchronizationError, match="asks for multiples of"):
        check_synchronization(_moved(_module(made, "matmul, TMA unit"), by))


def test_buffers_that_live_at_once_lie_apart(made: dict[str, Module]) -> None:
    broken = _module(made, "matmul, TMA unit").clone()
    rings = [op for op in broken.walk() if isinstance(op, LocalAllocOp)]
    small, large = sorted(
        (op for op in rings if len(op.result.type.shape) > 2), key=lambda op: op.bytes
    )
    small.offset = large.offset
    with pytest.raises(SynchronizationError, match="tensor_copy writes"):
        check_synchronization(broken)


def test_memory_that_is_not_there(made: dict[str, Module]) -> None:
    broken = _module(made, "softmax").clone()
    broken.attrs["shared"] -= 1
    with pytest.raises(SynchronizationError, match="in shared memory"):
        check_synchronization(broken)


# --- what was found -------------------------------------------------------------------------------------------
@tessera.jit
def product_and_sum(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + j[None, :])
    at = i[:, None] * N + j[None, :]
    tl.store(out + at, tl.dot(x, y, tl.load(c + at)))


@pytest.mark.parametrize("shape", [(64, 16, 128), (128, 128, 32)])
def test_operands_written_before_another_tile_is_exchanged(shape: tuple[int, int, int]) -> None:
    """The exchange has a barrier, but no fence that shows products what threads wrote before it."""
    constants = dict(zip("MNK", shape, strict=True))
    signature = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "out": "*fp32"}
    specimen = SimpleNamespace(
        kernel=product_and_sum, constants=constants, signature=signature, options={"num_warps": 4}
    )
    module = gpu_ir(specimen, 90)
    ops = list(module.walk())
    (multiplied,) = [op for op in ops if isinstance(op, WgmmaOp)]
    before = ops[: ops.index(multiplied)]
    assert any("scratch" in op.attrs for op in before)
    assert any(isinstance(op, BarrierOp) and op.attrs.get("proxy") for op in before)
    check_synchronization(module)


TURNED = """
#0 = ll<[64,2] register=[[0,1]] lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] warp=[[32,0]]>
#1 = ll<[64,2] register=[[{row},0]] lane=[[0,1],[2,0],[4,0],[8,0],[16,0]] warp=[[{other},0]]>
module {{num_warps=2, shared=512}} {{
  func {{name='f', kernel=True}} (%x: tile<64x2xfp32, #0>, %n: i32) {{
    %i: i32 = const {{value=0}}
    %one: i32 = const {{value=1}}
    for %i, %n, %one, [] (%j: i32) {{
      %a: tile<64x2xfp32, #1> = convert_layout %x {{scratch=0, scratch_bytes=512, within_warps=True}}
      {then}
      print [%a]
      yield []
    }}
    return []
  }}
}}
"""


def test_conversions_within_warps() -> None:
    """Each warp keeps to its own bytes in all iterations. Nobody else may have them without a barrier."""
    check_synchronization(parse_module(TURNED.format(row=1, other=32, then="")))
    with pytest.raises(SynchronizationError, match="convert_layout moves elements between warps"):
        check_synchronization(parse_module(TURNED.format(row=32, other=1, then="")))
    back = "%b: tile<64x2xfp32, #0> = convert_layout %a {scratch=0, scratch_bytes=512, within_warps=True}"
    with pytest.raises(SynchronizationError, match="writes `b`"):
        check_synchronization(parse_module(TURNED.format(row=1, other=32, then=back)))
    met = f"barrier\n{back}\nbarrier"
    check_synchronization(parse_module(TURNED.format(row=1, other=32, then=met)))


def test_reads_that_an_arrival_awaits_and_others_use_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is over when it is first needed, however often it is needed after that. The compiler has arrivals behind
    a write that needs it; here they stand in front of that."""
    module = rows_scaled()
    assert not any(op.after for op in module.walk() if isinstance(op, MbarrierArriveOp))
    check_synchronization(module)
    monkeypatch.setattr(async_mma, "_settled", lambda arrive, last, place: last)
    module = rows_scaled()
    arrivals = [op for op in module.walk() if isinstance(op, MbarrierArriveOp)]
    assert any(op.after for op in arrivals)
    check_synchronization(module)
    for op in arrivals:
        op.set_operands(op.bars, op.index, op.condition, op.released, ())
    with pytest.raises(SynchronizationError, match="without a fence between the proxies"):
        check_synchronization(module)
