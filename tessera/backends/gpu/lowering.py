"""Lowers tiles with layouts to the instructions of one thread: state, registry and driver of the SIMT lowering.

A tile is a list of LLVM values, one for each register index of its layout; registers that hold the same element share
one name. A scalar is a list of one value, the same in all threads of the program. Each op class has one function,
registered with `@lowers`, in the file of its family.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.ranges import IntegerRanges
from tessera.backends.gpu.line_info import FunctionLines
from tessera.backends.gpu.scalar import Scalar
from tessera.backends.gpu.target import GpuTarget
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.writer import ModuleText, Writer
from tessera.errors import InternalError
from tessera.ir import Block, Module, Op, SharedType, TileType, TokenType, Type, Value, elem_of
from tessera.ir.applications import apply
from tessera.layout.linear import LinearLayout
from tessera.layout.matrix_ops import images
from tessera.ops import ConstOp, DotOp, ForOp, Loop, Matmul

PROGRAMS = "%programs"  # the parameter that holds the launch's grid, three i32
# Results of products by FMAs in a thread, up to which 80 registers are enough, and the threads that then share an SM.
FEW_RESULTS, WAITING_THREADS = 8, 768
Lowering = Callable[["FunctionLowering", Any], None]
LOWERINGS: dict[type[Op], Lowering] = {}


def lowers(*classes: type[Op]) -> Callable[[Lowering], Lowering]:
    """Register the lowering of these op classes."""

    def register(fn: Lowering) -> Lowering:
        for cls in classes:
            LOWERINGS[cls] = fn
        return fn

    return register


class FunctionLowering:
    """Lowers one function; `w` writes its text, `values` maps each IR value to its LLVM values."""

    def __init__(
        self, module: Module, func: Any, text: ModuleText, target: GpuTarget, *, fusion: bool = True
    ) -> None:
        self.module, self.func, self.target = module, func, target
        self.w = Writer(text)
        self.num_warps: int = module.attrs.get("num_warps", 4)
        self.warp_bits = self.num_warps.bit_length() - 1
        self.values: dict[Value, list[str]] = {}
        self.ahead: set[Op] = set()  # ops whose results another op's lowering has given
        self.deferred: dict[Value, Any] = {}  # shared loads that their only user emits
        self.readers: dict[
            Value, Any
        ] = {}  # of tiles read from shared memory: which registers came
        self.axis = AxisAnalysis(func)
        self.scalars = Scalar(self.w, target, contract=fusion)
        self.kernel: bool = func.kernel
        self.extra_attributes = ""
        self.single = False  # only one thread runs this code
        self.role_mask: int | None = None  # of the thread's number, in a role of fewer warps
        self.tensor_maps = len(module.attrs.get("tensor_maps", ())) if self.kernel else 0
        # Whether CTAs run several programs; the launch's grid is then a parameter.
        self.persistent = bool(self.kernel and module.attrs.get("persistent"))
        self.lines = FunctionLines(text.lines, func.name) if text.lines is not None else None
        # Code that runs before the program ends, by name.
        self.at_end: dict[str, Callable[[], None]] = {}

    # --- values ------------------------------------------------------------------------------------------
    def get(self, v: Value) -> list[str]:
        return self.values[v]

    def scalar(self, v: Value) -> str:
        return self.values[v][0]

    def set(self, v: Value, names: list[str]) -> None:
        self.values[v] = names

    @cached_property
    def ranges(self) -> IntegerRanges:
        """What the code itself says of the sizes of integers."""
        return IntegerRanges(self.module)

    # --- threads -----------------------------------------------------------------------------------------
    @property
    def thread(self) -> str:
        with self.w.hoist():
            index = self.target.thread_index(self.w)
            return (
                index
                if self.role_mask is None
                else self.w.pure(f"and i32 {index}, {self.role_mask}")
            )

    @contextmanager
    def role_of_warps(self, warps: int) -> Generator[None]:
        """Lower code that `warps` additional warps run. `warps` is a power of two, and the number of their first thread
        is a multiple of theirs. Layouts in it are for that many warps."""
        before = self.num_warps, self.warp_bits
        self.num_warps, self.warp_bits = warps, warps.bit_length() - 1
        self.role_mask = 32 * warps - 1
        yield
        self.num_warps, self.warp_bits = before
        self.role_mask = None

    @property
    def lane(self) -> str:
        thread = self.thread
        if self.num_warps == 1:
            return thread
        with self.w.hoist():
            return self.w.pure(f"and i32 {thread}, 31")

    @property
    def warp(self) -> str:
        thread = self.thread
        if self.num_warps == 1:
            return "0"
        with self.w.hoist():
            return self.w.pure(f"lshr i32 {thread}, 5")

    def thread_sum(self, columns: Sequence[int]) -> str:
        """Return the XOR of the columns of the set bits of the thread index; "" if all are zero.

        A run of bits with columns c, 2c, 4c, ... takes one masked shift.
        """
        thread = self.thread
        with self.w.hoist():
            return self._thread_sum(thread, columns)

    def _thread_sum(self, thread: str, columns: Sequence[int]) -> str:
        w, result, seen = self.w, "", 0
        bit = 0
        while bit < len(columns):
            start, first = bit, columns[bit]
            bit += 1
            if not first:
                continue
            low = first & -first
            # Only runs of one-bit columns qualify: with more bits, the shifted copies would overlap.
            while first == low and bit < len(columns) and columns[bit] == columns[bit - 1] << 1:
                bit += 1
            part = self._thread_bits(thread, start, bit - start, low.bit_length() - 1)
            image = 0
            for column in columns[start:bit]:
                image |= column
            if first != low:
                part = w.pure(f"mul i32 {part}, {first // low}")
            if not result:
                result = part
            else:
                how = "xor" if seen & image else "or disjoint"
                result = w.pure(f"{how} i32 {result}, {part}")
            seen |= image
        return result

    def _thread_bits(self, value: str, start: int, count: int, shift: int) -> str:
        """Return ((thread >> start) & mask) << shift."""
        w = self.w
        top = start + count == 5 + self.warp_bits
        if top and shift == 0:
            return w.pure(f"lshr i32 {value}, {start}") if start else value
        if not top or start:
            value = w.pure(f"and i32 {value}, {((1 << count) - 1) << start}")
        if shift == start:
            return value
        return w.pure(
            f"shl i32 {value}, {shift - start}"
            if shift > start
            else f"lshr i32 {value}, {start - shift}"
        )

    def thread_columns(self, lane: Sequence[int], warp: Sequence[int]) -> list[int]:
        """Return the columns by bit of the thread index."""
        lanes = list(lane) + [0] * (5 - len(lane))
        return lanes + list(warp)

    def element_offsets(
        self, register: Sequence[int], lane: Sequence[int], warp: Sequence[int]
    ) -> list[str]:
        """Return the i32 value of map(register, lane, warp) for each register of this thread."""
        w = self.w
        columns = self.thread_columns(lane, warp)
        base = self.thread_sum(columns)
        mask = 0
        for column in columns:
            mask |= column
        with w.hoist():
            return [self.combine_offset(base, constant, mask) for constant in images(register)]

    def combine_offset(self, base: str, constant: int, thread_mask: int) -> str:
        """Return base ^ constant; bits of the constant that no thread sets are added."""
        w = self.w
        if not base:
            return str(constant)
        if constant & thread_mask:
            base = w.pure(f"xor i32 {base}, {constant & thread_mask}")
            constant &= ~thread_mask
        w.limits[base] = thread_mask
        return w.add_const("i32", base, constant)

    def flat_indices(self, layout: LinearLayout) -> list[str]:
        """Return the row-major element index of each register of this thread."""
        return self.element_offsets(*[layout.columns(d) for d in ("register", "lane", "warp")])

    def shared_base(self) -> str:
        """Return the i32 address of the program's shared memory."""
        with self.w.hoist():
            return self.w.pure("ptrtoint ptr addrspace(3) @smem to i32")

    def shared_addresses(
        self, start: int, register: Sequence[int], lane: Sequence[int], warp: Sequence[int]
    ) -> list[str]:
        """Return the i32 shared address of each register, from columns in bytes, in an area that starts at byte
        `start`."""
        base, offsets = self.shared_base(), self.element_offsets(register, lane, warp)
        w = self.w
        with w.hoist():
            return [w.add("i32", w.add("i32", base, x), str(start)) for x in offsets]

    def owner_mask(
        self, layout: LinearLayout | None, distinct_warps: int = 0, lanes_set: int = 0
    ) -> str:
        """Return an i1: this thread holds the first copy of its elements ("true" if there are no copies). Warps that
        differ in the bits `distinct_warps` hold different data although the layout does not say so; of lanes that
        differ in the bits `lanes_set` the last one counts, not the first."""
        w = self.w
        if layout is None:
            bits = (1 << (5 + self.warp_bits)) - 1
        else:
            masks = layout.free_masks()
            bits = masks.get("lane", 0) | masks.get("warp", 0) << 5
            bits |= (0x1F >> layout.bits("lane")) << layout.bits("lane")
            missing = ((1 << self.warp_bits) - 1) >> layout.bits("warp") << layout.bits("warp")
            bits = (bits | missing << 5) & ~(distinct_warps << 5)
        if bits == 0:
            return "true"
        found = self.thread
        with w.hoist():
            if bits != (1 << (5 + self.warp_bits)) - 1:
                found = w.pure(f"and i32 {found}, {bits}")
            return w.pure(f"icmp eq i32 {found}, {lanes_set}")

    # --- ops -----------------------------------------------------------------------------------------------
    def lower_block(self, block: Block) -> None:
        """Lower all ops but the terminator."""
        for op in block:
            if op.terminator:
                return
            self.lower(op)

    def lower(self, op: Op) -> None:
        fn = LOWERINGS.get(type(op))
        if fn is None:
            raise InternalError(f"no GPU lowering of {op.opcode}", loc=op.loc)
        before = self.lines.enter(op.loc, self.w.lines) if self.lines is not None else -1
        try:
            fn(self, op)
        except InternalError as error:
            if error.loc is None:
                error.loc = op.loc
            raise
        if self.lines is not None:
            self.lines.leave(before, self.w.lines)

    def attributes(self) -> str:
        """Return the attributes of the function."""
        if not self.kernel:
            return "nounwind"
        warps = self.num_warps + self.module.attrs.get("producer_warps", 0)
        # MMAs need all registers that their CTA can have; small products by FMAs wait for shared memory, with few.
        ctas: int = self.module.attrs.get("resident_ctas", 1) if self.has_mma else 0
        if self._has_small_products() and apply("raise-occupancy"):
            ctas = max(ctas, WAITING_THREADS // (32 * warps))
        loops = [op for op in self.module.walk() if isinstance(op, Loop)]
        bounds = [v.op for op in loops if isinstance(op, ForOp) for v in (op.lb, op.ub, op.step)]
        counted = len(bounds) == 3 * len(loops) and all(isinstance(x, ConstOp) for x in bounds)
        return (
            self.target.kernel_attributes(warps, ctas, bool(loops), counted) + self.extra_attributes
        )

    @property
    def has_mma(self) -> bool:
        """Whether the program has MMAs, and so may take all registers of an SM for one CTA."""
        return any(isinstance(op, Matmul) for op in self.module.walk())

    def _has_small_products(self) -> bool:
        """Whether all products are of FMAs that read shared memory, with few results in a thread."""
        products = [op for op in self.module.walk() if isinstance(op, Matmul)]
        return bool(products) and all(
            isinstance(op, DotOp) and op.in_place and registers_of(op.result.type) <= FEW_RESULTS
            for op in products
        )

    def register_types(self, t: Type) -> str:
        return llvm_type(elem_of(t))


def registers_of(t: Type) -> int:
    """Return how many register values hold a value of type `t` in one thread."""
    if isinstance(t, TileType):
        return t.layout.size("register")
    return 0 if isinstance(t, TokenType) else 1


def carried_type(t: Type) -> str:
    """Return the LLVM type of each register of a loop-carried value."""
    return "i32" if isinstance(t, SharedType) else llvm_type(elem_of(t))
