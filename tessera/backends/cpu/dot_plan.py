"""Plans dots: a plan says which strategy, instructions and blocks a dot gets, and why. It is data and prints as a line.

Of the machine's instructions, a dot gets the first row of `PATHS` that is exact for its types and fits its shape, else
multiply-adds in the accumulator's type. The LLVM IR has a comment with the line of each plan:

    dot fp32 64x64x32: prepack-k, amx-bf16; rows 2 x 32; panels 2 x 32; A in place, B shared
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.target import CpuFacts
from tessera.dtypes import FP8, bfloat16, dtype, float32, float64, int8, int16, int32, int64, uint8
from tessera.ir import elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import DotOp

Panel = tuple[int, int, int, int]  # lanes, vectors, first column, number of panels of this kind
Rows = tuple[int, int, int]  # rows of a block, first row, number of blocks of this kind

MOST_ROWS = 8  # of a block: an address of each is in a register
MOST_VECTORS = 8  # of a block of few rows: as many sums hide the latency of a multiply-add
TILE = 16  # rows of a tile of the matrix unit, and columns of 32 bits


@dataclass(frozen=True, slots=True)
class Path:
    """Instructions that multiply. Operands of the types `takes` are converted to `t`, accumulators are of type `acc`. A
    lane of 32 bits holds `k_pack` neighbours along k; with 1, a lane is an element.

    `feature`: their name in `CpuFacts`. `bias`: the factor of B's column sums by which results are too large."""

    name: str
    t: dtype
    acc: dtype
    k_pack: int = 1
    takes: tuple[dtype, ...] = ()
    feature: str = ""
    optimization: str = ""
    bias: int = 0

    @property
    def tiles(self) -> bool:
        return self.feature == "tiles"


_BF16, _INT8 = (bfloat16, float32, 2, (bfloat16, *FP8)), (int8, int32, 4, (int8,))
PATHS = (
    Path("amx-bf16", *_BF16, feature="tiles", optimization="amx-tiles"),
    Path("amx-int8", *_INT8, feature="tiles", optimization="amx-tiles"),
    Path("avx512-bf16", *_BF16, feature="bf16_dot", optimization="bf16-pairs"),
    Path("avx512-vnni", *_INT8, feature="bytes_dot", optimization="int8-quads", bias=128),
    Path("pmaddwd", int16, int32, 2, (int8, uint8), feature="words_dot", optimization="int8-pairs"),
)


@dataclass(frozen=True, slots=True)
class DotPlan:
    """How a dot of m x k by k x n is multiplied. `strategy`: "in place" in the program, as one "chain" with the dots
    before it, as one of a "batch", or "prepack-k" with those of all steps of its loop. `placed`: where A and B are, set
    when they are put there."""

    strategy: str
    path: Path
    m: int
    n: int
    k: int
    rows: tuple[Rows, ...]
    panels: tuple[Panel, ...]
    why: str = ""
    placed: dict[str, str] = field(default_factory=lambda: {})

    @property
    def t(self) -> dtype:
        return self.path.t

    @property
    def acc(self) -> dtype:
        return self.path.acc

    @property
    def k_groups(self) -> int:
        return self.k // self.path.k_pack

    @property
    def packed_type(self) -> str:
        """The LLVM type of a k group."""
        return "i32" if self.path.k_pack > 1 else scalar_type(self.t)

    @property
    def packed_bytes(self) -> int:
        return self.path.k_pack * self.t.storage_bytes

    def __str__(self) -> str:
        rows = " + ".join(f"{count} x {rows}" for rows, _, count in self.rows)
        panels = " + ".join(f"{count} x {lanes * v}" for lanes, v, _, count in self.panels)
        parts = [f"rows {rows}", f"panels {panels}"]
        parts += [", ".join(f"{name} {where}" for name, where in sorted(self.placed.items()))]
        parts += [self.why]
        head = f"dot {self.acc.name} {self.m}x{self.n}x{self.k}: {self.strategy}, {self.path.name}"
        return "; ".join([head, *(x for x in parts if x)])


def plan_dot(facts: CpuFacts, op: DotOp, strategy: str, why: str = "") -> DotPlan:
    """Return the plan of a dot: the widest instructions that are exact for its types and fit its shape. `why`: the
    reason for the strategy."""
    m, k = shape_of(op.a.type)[-2:]
    n, acc = shape_of(op.b.type)[-1], compute_type(elem_of(op.acc.type))
    plain = Path("fma" if acc.is_floating() else "multiply-add", acc, acc)
    path, refused = plain, [why] if why else []
    for row in PATHS if len(shape_of(op.a.type)) == 2 else ():
        if row.acc is not acc or not {elem_of(op.a.type), elem_of(op.b.type)} <= {*row.takes}:
            continue
        reason = _refusal(facts, row, m, n, k)
        if not reason and apply(row.optimization, op):
            path = row
            break
        refused.append(f"no {row.name}: {reason or 'switched off'}")
    if path.tiles:
        rows = tuple((h * v, first, count) for h, v, first, count in panels(m, TILE, 2))
        columns = panels(n, TILE, 2)
    else:
        vectors = max(facts.dot_vectors, min(facts.dot_rows * facts.dot_vectors // m, MOST_VECTORS))
        columns = panels(n, facts.vector_bits // acc.bits, vectors)
        rows = split_rows(m, _rows_of_block(facts, max(vectors for _, vectors, *_ in columns)))
    return DotPlan(strategy, path, m, n, k, rows, columns, ", ".join(refused))


def _refusal(facts: CpuFacts, path: Path, m: int, n: int, k: int) -> str:
    """Return why instructions cannot multiply a dot; "" if they can."""
    if not getattr(facts, path.feature):
        return "the target lacks it"
    deep = path.k_pack * (TILE if path.tiles else 1)
    for name, size, unit in (("m", m, TILE if path.tiles else 1), ("n", n, TILE), ("k", k, deep)):
        if size % unit:
            return f"{name} is no multiple of {unit}"
    return ""


def compute_type(acc: dtype) -> dtype:
    """Return the type of the accumulator registers."""
    if acc.is_floating():
        return float64 if acc is float64 else float32
    return int64 if acc.bits == 64 else int32


def _rows_of_block(facts: CpuFacts, vectors: int) -> int:
    """Return the rows of a block of at most `vectors` vectors: narrow blocks are higher, so that as many accumulators
    are under way. More rows than that would need too many registers for their addresses."""
    return min(facts.dot_rows * facts.dot_vectors // vectors, MOST_ROWS)


def panels(n: int, lanes: int, vectors: int) -> tuple[Panel, ...]:
    """Return the panels of `n` columns: as many of `vectors` vectors as fit, and narrower ones for the rest. Two of
    half the vectors replace a whole one and one of a single vector, which would wait for its few accumulators."""
    found: list[Panel] = []
    full, rest = divmod(n // lanes, vectors)
    kinds = [(vectors, full), (rest, 1)]
    if rest == 1 and full and vectors % 2:
        kinds = [(vectors, full - 1), ((vectors + 1) // 2, 2)]
    first = 0
    for width, count in kinds:
        if width and count:
            found.append((lanes, width, first, count))
            first += lanes * width * count
    while first < n:
        narrow = 1 << ((n - first).bit_length() - 1)
        found.append((narrow, 1, first, 1))
        first += narrow
    return tuple(found)


def split_rows(total: int, most: int) -> tuple[Rows, ...]:
    """Return near-equal blocks of at most `most` rows: one kind or two."""
    blocks = -(-total // most)
    big, extra = -(-total // blocks), total % blocks
    if not extra:
        return ((total // blocks, 0, blocks),)
    return (big, 0, extra), (big - 1, big * extra, blocks - extra)
