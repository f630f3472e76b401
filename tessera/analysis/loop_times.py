"""Estimates how long an iteration of a loop keeps each part of an SM busy, and what a plan for the loop makes of that.

The parts work side by side, so that the busiest one bounds a loop whose work overlaps. What does not overlap is added
up: an MMA that is waited for and the work on its result, or a copy that is begun in the iteration that needs it. CTAs
that share an SM fill each other's gaps, but not those of a part that is busy all the time. The rates are those of
`machines.py`; nothing here is fitted to kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import prod

from tessera import ops
from tessera.analysis.machines import BANK_BYTES, L2_BYTES, LATENCY, MUFU_LANES, SCHEDULERS, Machine
from tessera.dtypes import dtype
from tessera.errors import Loc
from tessera.ir import Op, SharedType, TileType, Value, elem_of, shape_of
from tessera.layout import SharedExchange, plan_conversion
from tessera.ops.tile import Matmul

PARTS = ("tensor cores", "shared memory", "copies", "issue slots", "exponentials")
WAIT, ON, LATE = "are waited for", "run on into the next iteration", "run an iteration late"
NONE = "none"
ROWS = 64  # of one wgmma, which reads the second operand once (PTX ISA, wgmma)
VECTOR_BITS = 128  # of a thread's widest access
NEARLY = 0.9  # of an iteration that a part must be busy to be its bound


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """`buffers` of each ring, iterations that copies run `ahead`, what MMAs do (WAIT, ON, LATE, NONE), how copies are
    signalled, shared memory in `bytes`, how many `ctas` of that size share an SM. `obstacle`: why it cannot be."""

    buffers: int
    ahead: int
    mmas: str
    signal: str
    bytes: int
    ctas: int
    obstacle: str = ""

    def __str__(self) -> str:
        copies = (
            f"copies {self.ahead} iterations ahead ({self.signal}, {self.buffers} buffers)"
            if self.ahead
            else "no copies ahead"
        )
        return copies if self.mmas == NONE else f"{copies}, MMAs {self.mmas}"


@dataclass(frozen=True, slots=True)
class LoopWork:
    """What an iteration of one CTA does: operations of `products` by type, bytes to and from `shared` memory, bytes
    `copied` from global memory, `instructions` of warps, `exponentials` and their like."""

    products: dict[str, float]
    shared: float = 0.0
    copied: float = 0.0
    instructions: float = 0.0
    exponentials: float = 0.0

    def busy(self, machine: Machine) -> dict[str, float]:
        """Return the cycles that each part of an SM is busy."""
        clocks = machine.units * machine.clock
        rates = {
            kind: machine.products.get(kind) or machine.products["fp32"] for kind in self.products
        }
        tensor = sum(n * clocks / rates[kind] for kind, n in self.products.items())
        found = (
            tensor, self.shared / BANK_BYTES, self.copied / L2_BYTES, self.instructions / SCHEDULERS,
            self.exponentials / MUFU_LANES,
        )  # fmt: skip
        return dict(zip(PARTS, found, strict=True))


@dataclass(frozen=True, slots=True)
class LoopChoice:
    """What a planner noted of a loop: its work, the plan that it chose, and the others that it looked at."""

    loc: Loc | None
    work: LoopWork
    plan: LoopPlan
    others: tuple[LoopPlan, ...]


@dataclass(frozen=True, slots=True)
class LoopAccount:
    """A choice on a machine: cycles by part of an SM; the plan, and the cycles of an SM that an iteration of a CTA is
    predicted to take; the best other plan, and why it lost; the part that is the `bound`, or "waiting"."""

    busy: dict[str, float]
    plan: LoopPlan
    cycles: float
    other: LoopPlan | None
    other_cycles: float
    why: str
    bound: str


# --- one iteration ------------------------------------------------------------------------------------------------
def product_flops(op: Op) -> float:
    """Return the operations of a matrix product: a multiplication and an addition for each pair of elements."""
    assert isinstance(op, Matmul)
    *batch, m, k = op.a.type.shape
    return 2.0 * prod(batch) * m * k * op.b.type.shape[-1]


def product_type(op: Op) -> str:
    """Return the type whose rate bounds a product."""
    assert isinstance(op, Matmul)
    elem: dtype = op.a.type.elem
    if elem.is_floating() and elem.bits == 8:
        return "fp8"
    instruction: str = op.attrs.get("instruction", "") or op.attrs.get("precision", "")
    if elem.name == "fp32":
        return "tf32" if "tf32" in instruction else "fp32"
    return elem.name


def work_of(loop: ops.ForOp, warps: int) -> LoopWork:
    """Count an iteration of a loop whose tiles have layouts; loops inside are left out."""
    products: dict[str, float] = {}
    shared = copied = instructions = exponentials = 0.0
    for op in _inside(loop):
        if isinstance(op, Matmul):
            kind = product_type(op)
            products[kind] = products.get(kind, 0.0) + product_flops(op)
        shared += _shared_bytes(op, warps)
        copied += _copied_bytes(op)
        instructions += _instructions(op) * warps
        exponentials += _elements(op) if isinstance(op, ops.FloatUnary) else 0
    return LoopWork(products, shared, copied, instructions, exponentials)


def _inside(loop: ops.ForOp) -> Iterator[Op]:
    for op in loop.body:
        yield op
        for block in () if isinstance(op, ops.Loop) else op.regions:
            yield from block


def _elements(op: Op) -> int:
    return prod(shape_of(op.results[0].type))


def _bytes(v: Value) -> int:
    t = v.type
    if not isinstance(t, TileType | SharedType):
        return 0
    return prod(t.shape) * t.elem.storage_bits // 8


def _registers(v: Value) -> int:
    """Return how many elements a thread holds."""
    t = v.type
    if not isinstance(t, TileType) or t.layout is None:
        return 0
    return len(set(t.layout.register_representatives()))


def _copied_bytes(op: Op) -> int:
    if isinstance(op, ops.TileLoad) and isinstance(op.result.type, TileType):
        return _bytes(op.result)
    return 0


def _shared_bytes(op: Op, warps: int) -> float:
    """Return how much an op moves to and from shared memory."""
    if isinstance(op, ops.WgmmaOp):
        first, second = (op.b, op.a) if op.transposed else (op.a, op.b)
        rows = shape_of(op.result.type)[1 if op.transposed else 0]
        read = _bytes(first) if isinstance(first.type, SharedType) else 0
        again = max(1, rows // ROWS)
        return read + again * (_bytes(second) if isinstance(second.type, SharedType) else 0)
    if isinstance(op, ops.LocalLoadOp):
        bits = elem_of(op.result.type).storage_bits
        return _registers(op.result) * warps * 32 * bits // 8
    if isinstance(op, ops.LocalAllocOp):
        return _bytes(op.init) if op.init is not None else 0
    if isinstance(op, ops.ConvertLayoutOp) and _exchanges(op):
        return 2 * _bytes(op.result)
    return 0


def _exchanges(op: ops.ConvertLayoutOp) -> bool:
    before, after = op.x.type.layout, op.result.type.layout
    if before is None or after is None:
        return False
    plan = plan_conversion(before, after, elem_of(op.x.type).storage_bits)
    return isinstance(plan, SharedExchange)


def _instructions(op: Op) -> float:
    """Return the instructions of a warp."""
    if isinstance(op, ops.LocalLoadOp | ops.LoadOp):
        bits = elem_of(op.result.type).storage_bits
        return -(-_registers(op.result) * bits // VECTOR_BITS)
    if isinstance(op, ops.LocalAllocOp):
        if op.init is None or isinstance(op.init.op, ops.TileLoad):  # which is copied there
            return 0.0
        bits = _registers(op.init) * elem_of(op.init.type).storage_bits
        return -(-bits // VECTOR_BITS)
    if isinstance(op, ops.Elementwise) and op.results:
        return _registers(op.results[0])
    return 0.0


# --- plans --------------------------------------------------------------------------------------------------------
def predicted(busy: dict[str, float], plan: LoopPlan) -> float:
    """Return the cycles of an SM that an iteration of one CTA takes."""
    return max(max(busy.values()), _alone(busy, plan) / plan.ctas)


def _alone(busy: dict[str, float], plan: LoopPlan) -> float:
    """Return the cycles of an iteration of a CTA that has an SM for itself."""
    work = max(busy["issue slots"], busy["exponentials"])
    tensor = busy["tensor cores"]
    cycles = max(tensor, work) if plan.mmas in (ON, LATE) else tensor + work
    return max(cycles, LATENCY / plan.ahead) if plan.ahead else cycles + LATENCY


def choices(kinds: Collection[str], most: int) -> Iterator[tuple[int, int, str]]:
    """Yield (buffers, iterations that copies run ahead, what MMAs do) of all plans with up to `most` buffers. MMAs that
    run on or late keep their buffers for an iteration more."""
    for buffers in range(1, most + 1):
        for kind in kinds:
            ahead = buffers - 1 - (kind in (ON, LATE))
            if ahead > 0 or (buffers == 1 and kind not in (ON, LATE)):
                yield buffers, ahead, kind


def kinds_of(loop: ops.ForOp, running: object, shifted: object) -> list[str]:
    """Return what the MMAs of a loop may do, the best first."""
    if not any(isinstance(op, ops.WgmmaOp) for op in _inside(loop)):
        return [NONE]
    return [*([ON] if running else [LATE] if shifted else []), WAIT]


def account(choice: LoopChoice, machine: Machine, most: int) -> LoopAccount:
    """Compare the plan that was chosen with the best of the others, where at most `most` CTAs share an SM."""

    def limited(p: LoopPlan) -> LoopPlan:
        return replace(p, ctas=max(1, min(p.ctas, most)))

    busy, plan = choice.work.busy(machine), limited(choice.plan)
    mine = predicted(busy, plan)
    part = max(busy, key=lambda p: busy[p])
    bound = part if busy[part] >= mine * NEARLY else "waiting"

    def rank(p: LoopPlan) -> tuple[int, bool, int, int]:
        return round(predicted(busy, p)), bool(p.obstacle), round(_alone(busy, p)), p.bytes

    best = min(map(limited, choice.others), key=rank, default=None)
    if best is None:
        return LoopAccount(busy, plan, mine, None, 0.0, "", bound)
    its = predicted(busy, best)
    return LoopAccount(busy, plan, mine, best, its, _reason(plan, mine, best, its), bound)


def _reason(plan: LoopPlan, mine: float, other: LoopPlan, its: float) -> str:
    if other.obstacle:
        return other.obstacle
    if round(its) > round(mine):
        return f"{its - mine:.0f} cycles an iteration more"
    if round(its) < round(mine):
        return "estimated to be faster, but a rule of the planner prefers the other"
    if other.ctas < plan.ctas:
        return f"no faster, and {other.ctas} CTAs would share an SM, not {plan.ctas}"
    if other.bytes > plan.bytes:
        return f"no faster, with {other.bytes} bytes of shared memory, not {plan.bytes}"
    return "no faster, and copies would be late where memory takes longer"
