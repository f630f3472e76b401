"""Implements `gpu.target.GpuTarget` for NVIDIA GPUs: each request emits rows of the primitive
table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.backends.gpu.target import Access, Order, PackedShape, Place, Regs
from tessera.backends.gpu.writer import Writer
from tessera.backends.nvidia import primitives as p
from tessera.dtypes import bfloat16, dtype, float16, float32, float64
from tessera.ir import ElementType

ALL = "-1"
# Threads of an SM that have 40, 64 and 128 registers each. Straight-line code hides its latency by as many CTAs as
# possible; loops read ahead, for which they need registers.
RESIDENT_THREADS = (1536, 1024, 512)
FEW_CTAS = 2  # of a kernel, on an SM: more of them hide each other's waits


class NvidiaTarget:
    """Emits PTX instructions for compute capability `cc` (80, 89, 90, ...). `cluster` CTAs, adjacent along x, run one
    program."""

    warp_size = 32

    def __init__(self, cc: int, facts: Any, cluster: int = 1) -> None:
        self.cc, self.cluster = cc, cluster
        self._facts = facts
        self.named_barrier: tuple[int, int] | None = (
            None  # (number, threads) of those who meet; None: all
        )

    def facts(self) -> Any:
        return self._facts

    def header(self) -> list[str]:
        return [
            'target triple = "nvptx64-nvidia-cuda"',
            "@smem = external addrspace(3) global [0 x i8], align 1024",
        ]

    def kernel_attributes(self, num_warps: int, ctas: int, loops: bool, counted: bool) -> str:
        # Without a number of CTAs, or with an impossible one, ptxas delays loads to save registers for many CTAs.
        threads = 32 * num_warps
        resident = RESIDENT_THREADS[-1] if loops else RESIDENT_THREADS[0]
        most = min(max(1, resident // threads), self._facts.max_ctas)
        cluster = f' "nvvm.cluster_dim"="{self.cluster},1,1"' if self.cluster > 1 else ""
        # Loops of few iterations, which ptxas unrolls, have loads in flight anyway. With all registers for one or
        # two large CTAs it took 44 for 31, and 37 such kernels were 5 % slower on an H200 than with its own choice.
        room = (
            ""
            if not ctas and most <= FEW_CTAS and counted
            else f' "nvvm.minctasm"="{ctas or most}"'
        )
        return f'nounwind "nvvm.maxntid"="{threads}"{room}{cluster}'

    # --- threads ------------------------------------------------------------------------------------------
    def thread_index(self, w: Writer) -> str:
        return p.emit_primitive(w, "thread_index")

    def program_id(self, w: Writer, axis: int) -> str:
        whole = self.cluster > 1 and axis == 0
        return p.emit_primitive(w, "cluster_id" if whole else f"program_id_{'xyz'[axis]}")

    def num_programs(self, w: Writer, axis: int) -> str:
        whole = self.cluster > 1 and axis == 0
        return p.emit_primitive(w, "num_clusters" if whole else f"num_programs_{'xyz'[axis]}")

    def cta_rank(self, w: Writer) -> str:
        return p.emit_primitive(w, "cta_rank")

    def special_register(self, w: Writer, name: str) -> str:
        return p.emit_primitive(w, name)

    def grid_dependency(self, w: Writer, kind: str) -> None:
        if self.cc >= 90:
            p.emit_primitive(w, f"grid_{kind}")

    def barrier(self, w: Writer) -> None:
        if self.named_barrier is None:
            p.emit_primitive(w, "barrier")
        else:
            p.named_barrier_sync(*self.named_barrier).emit(w, [])

    def warp_barrier(self, w: Writer) -> None:
        p.emit_primitive(w, "warp_sync")

    def proxy_fence(self, w: Writer) -> None:
        """Make this thread's writes to shared memory visible to instructions that read it through descriptors."""
        p.emit_primitive(w, "proxy_fence")

    def shuffle_xor(self, w: Writer, reg: str, mask: int) -> str:
        return p.emit_primitive(w, "shuffle_xor", ALL, reg, str(mask), "31")

    def shuffle_index(self, w: Writer, reg: str, lane: str) -> str:
        return p.emit_primitive(w, "shuffle_index", ALL, reg, lane, "31")

    def reduce_warp(self, w: Writer, kind: str, reg: str) -> str:
        return p.emit_primitive(w, f"reduce_{kind}", reg, ALL)

    # --- memory ---------------------------------------------------------------------------------------------
    def load_global(
        self, w: Writer, at: Place, access: Access, type: str, mask: str, other: Regs
    ) -> list[str]:
        modifiers = ".volatile.global" if access.volatile else ".global" + _hints(access)
        type, narrow = _narrow(type)
        predicated = mask != "true"
        row = p.load_global(modifiers, access.bits, access.count, type, at[1], predicated)
        args = [at[0]]
        if predicated:
            zero = "0.0" if type in ("float", "double") else "0"
            start = [_widen(w, x, narrow) for x in other] if other else [zero] * access.count
            args = [*start, at[0], mask]
        return [_shrink(w, x, narrow) for x in _unpack(w, row.emit(w, args), type, access.count)]

    def store_global(
        self, w: Writer, at: Place, access: Access, type: str, regs: Regs, mask: str
    ) -> None:
        type, narrow = _narrow(type)
        row = p.store_global(
            ".global" + _hints(access), access.bits, access.count, type, at[1], mask != "true"
        )
        row.emit(
            w, [at[0], *[_widen(w, x, narrow) for x in regs], *([mask] if mask != "true" else [])]
        )

    def load_shared(self, w: Writer, at: Place, shape: PackedShape) -> list[str]:
        type, narrow = _narrow(shape.type)
        value = p.load_shared(shape.bits, shape.count, type, at[1]).emit(w, [at[0]])
        return [_shrink(w, x, narrow) for x in _unpack(w, value, type, shape.count)]

    def store_shared(self, w: Writer, at: Place, shape: PackedShape, regs: Regs, mask: str) -> None:
        if mask == "false":
            return
        type, narrow = _narrow(shape.type)
        row = p.store_shared(shape.bits, len(regs), type, at[1], mask != "true")
        row.emit(
            w, [at[0], *[_widen(w, x, narrow) for x in regs], *([mask] if mask != "true" else [])]
        )

    def load_matrix(self, w: Writer, at: Place, count: int, trans: bool) -> list[str]:
        return _unpack(w, p.load_matrix(count, trans, at[1]).emit(w, [at[0]]), "i32", count)

    def store_matrix(self, w: Writer, at: Place, regs: Regs, trans: bool) -> None:
        p.store_matrix(len(regs), trans, at[1]).emit(w, [at[0], *regs])

    # --- asynchronous copies ------------------------------------------------------------------------------
    def async_copy(
        self, w: Writer, shared: Place, source: Place, bytes: int, mask: str, access: Access, skip: bool = False,
        read: str = "",
    ) -> None:  # fmt: skip
        """Copy `bytes` (4, 8, 16), or the first `read` of them and zeros, where `mask`; elsewhere write zeros or, with
        `skip`, nothing."""
        if skip and mask != "true":
            row = p.async_copy_where(bytes, shared[1], source[1])
            row.emit(w, [shared[0], source[0], mask])
            return
        if mask != "true":
            read = w.pure(f"select i1 {mask}, i32 {read or bytes}, i32 0")
        prefetch = ".L2::128B" if bytes == 16 else ""  # neighbours follow: 1 % on large matmuls
        row = p.async_copy(bytes, prefetch, shared[1], source[1], bool(read))
        row.emit(w, [shared[0], source[0], *([read] if read else [])])

    def async_commit(self, w: Writer) -> None:
        p.emit_primitive(w, "async_commit")

    def async_wait(self, w: Writer, pending: int) -> None:
        p.async_wait(pending).emit(w, [])

    def has_atomic(self, kind: str, elem: ElementType) -> bool:
        """Whether there is an instruction for it. bf16 can be added from sm_90 on."""
        return not (kind == "add" and elem is bfloat16 and self.cc < 90)

    def memory_fence(self, w: Writer, scope: str) -> None:
        p.memory_fence(scope).emit(w, [])

    def atomic_width(self, kind: str, elem: Any) -> int:
        if kind != "add" or self.cc < 90:
            return 1
        return {float32: 4, float16: 8, bfloat16: 8}.get(elem, 1)

    def atomic_add_vector(
        self, w: Writer, elem: ElementType, at: Place, values: Regs, mask: str, scope: str
    ) -> None:
        type, ptx = _atomic_type("add", elem)
        row = p.add_vector(scope, ptx, type, at[1], len(values))
        row.emit(w, [at[0], *values, mask])

    # --- atomics -----------------------------------------------------------------------------------------------
    def atomic(
        self, w: Writer, kind: str, elem: ElementType, at: Place, value: str, mask: str, order: Order, want_result: bool
    ) -> str:  # fmt: skip
        type, ptx = _atomic_type(kind, elem)
        op = {"xchg": "exch"}.get(kind, kind)
        # red has no acquire form: an acquire orders what follows the result.
        result = want_result or order[0] in ("acquire", "acq_rel") or kind == "xchg"
        noftz = ".noftz" if elem in (float16, bfloat16) else ""
        row = p.atomic(f".{'.'.join(order)}.global", f"{op}{noftz}.{ptx}", type, at[1], 1, result)
        if not result:
            return row.emit(w, [at[0], value, mask])
        return row.emit(w, [_zero(type), at[0], value, mask])

    def atomic_cas(
        self, w: Writer, bits: int, at: Place, expected: str, value: str, mask: str, order: Order
    ) -> str:
        row = p.atomic(f".{'.'.join(order)}.global", f"cas.b{bits}", f"i{bits}", at[1], 2, True)
        return row.emit(w, ["0", at[0], expected, value, mask])

    def atomic_shared_add(self, w: Writer, address: str, value: str, mask: str) -> None:
        p.atomic_shared_add(0).emit(w, [address, value, mask])

    # --- arithmetic ---------------------------------------------------------------------------------------------
    def math(self, w: Writer, name: str, type: str, args: Regs) -> str | None:
        row = p.PRIMITIVES.get(f"{name}.{type}")
        return row.emit(w, args) if row is not None else None

    def narrow_pair(self, w: Writer, type: str, low: str, high: str) -> str:
        # fptrunc is avoided: LLVM splits it if the halves have different uses, and ptxas then serialises MMAs of
        # warpgroups (C7514) if single halves are computed from their results.
        return p.emit_primitive(w, f"pair.{type}", high, low)

    def round_tf32(self, w: Writer, x: str) -> str:
        return p.emit_primitive(w, "to_tf32_even" if self.cc >= 90 else "to_tf32", x)

    def mma(
        self, w: Writer, asm: str, acc_type: str, acc: Regs, a: Regs, b: Regs, reg: str
    ) -> list[str]:
        row = p.mma(asm, acc_type, (len(a), len(b), len(acc)), reg)
        return _unpack(w, row.emit(w, [*acc, *a, *b]), acc_type, len(acc))

    def convert_float8(self, w: Writer, source: Any, target: Any, values: Regs) -> list[str] | None:
        """Convert fp8e4nv, fp8e5 → fp16, or fp32 → fp8e4nv, fp8e5, in pairs; None below sm_89 and for other formats."""
        kind: dtype = source if source.is_fp8() else target
        if self.cc < 89 or not kind.ptx:
            return None
        if source.is_fp8():
            return self._from_float8(w, source, values)
        return self._to_float8(w, target, values)

    def _from_float8(self, w: Writer, source: dtype, values: Regs) -> list[str]:
        result: list[str] = []
        for i in range(0, len(values), 2):
            pair = values[i : i + 2]
            packed = _half_of(w, pair) or _joined(w, pair)
            both = p.emit_primitive(w, f"from_{source.name}", packed)
            result += w.unpair("half", w.pure(f"bitcast i32 {both} to <2 x half>"))[: len(pair)]
        return result

    def _to_float8(self, w: Writer, target: dtype, values: Regs) -> list[str]:
        result: list[str] = []
        for i in range(0, len(values), 2):
            low, high = values[i], values[i + 1] if i + 1 < len(values) else "0.0"
            packed = p.emit_primitive(w, f"to_{target.name}", high, low)
            vector = w.pure(f"bitcast i16 {packed} to <2 x i8>")
            for k in range(len(values[i : i + 2])):
                result.append(w.pure(f"extractelement <2 x i8> {vector}, i32 {k}"))
        return result

    # --- messages --------------------------------------------------------------------------------------------
    def trap(self, w: Writer) -> None:
        p.emit_primitive(w, "trap")

    def print(self, w: Writer, format: str, args: Sequence[tuple[Any, str]]) -> None:
        """Call printf with C's varargs layout in local memory: every value at its own size, ints at least 4 bytes."""
        data = w.module.string(format.encode("utf-8"))
        slots: list[tuple[str, str, int]] = []
        at = 0
        for type, name in args:
            size = 8 if type in ("i64", "double", "ptr addrspace(1)") else 4
            at = -(-at // size) * size
            slots.append((type, name, at))
            at += size
        w.module.declare("declare i32 @vprintf(ptr, ptr)")
        buffer = "null"
        if slots:
            with w.hoist():  # an alloca elsewhere would grow the stack each time
                buffer = w.emit(f"alloca [{at} x i8], align 8")
            for type, name, offset in slots:
                place = w.emit(f"getelementptr i8, ptr {buffer}, i32 {offset}")
                w.do(f"store {type} {name}, ptr {place}")
        text = w.pure(f"addrspacecast ptr addrspace(1) {data} to ptr")
        w.emit(f"call i32 @vprintf(ptr {text}, ptr {buffer}) #1")

    def assert_fail(self, w: Writer, message: str, file: str, line: int, function: str) -> None:
        """Call what CUDA's assert() calls: it prints the source line and ends the grid with a device-side assert."""
        w.module.declare("declare void @__assertfail(ptr, ptr, i32, ptr, i64)")
        names = [
            w.pure(f"addrspacecast ptr addrspace(1) {w.module.string(s.encode('utf-8'))} to ptr")
            for s in (message, file, function)
        ]
        w.do(
            f"call void @__assertfail(ptr {names[0]}, ptr {names[1]}, i32 {line}, ptr {names[2]}, i64 1) #1"
        )


def _joined(w: Writer, pair: Regs) -> str:
    """Return bytes in a register of 16 bits."""
    vector = "zeroinitializer"
    for k, x in enumerate(pair):
        vector = w.pure(f"insertelement <2 x i8> {vector}, i8 {x}, i32 {k}")
    return w.pure(f"bitcast <2 x i8> {vector} to i16")


def _half_of(w: Writer, pair: Regs) -> str | None:
    """Return the half of a 32-bit register that two bytes are; None if they are none."""
    if len(pair) != 2 or any(x not in w.parts for x in pair):
        return None
    (vector, low), (other, high) = w.parts[pair[0]], w.parts[pair[1]]
    if vector != other or low % 2 or high != low + 1:
        return None
    halves = w.pure(f"bitcast <4 x i8> {vector} to <2 x i16>")
    return w.pure(f"extractelement <2 x i16> {halves}, i32 {low // 2}")


def _hints(access: Access) -> str:
    """Return the cache operator or the eviction priority: PTX takes one of the two."""
    if access.cache:
        return access.cache
    return f".L1::{access.eviction}" if access.eviction else ""


def _narrow(type: str) -> tuple[str, str]:
    """Return (type of the register, the byte type or ""): bytes are moved in 16-bit registers."""
    return ("i16", type) if type == "i8" else (type, "")


def _widen(w: Writer, x: str, narrow: str) -> str:
    return w.pure(f"zext {narrow} {x} to i16") if narrow else x


def _shrink(w: Writer, x: str, narrow: str) -> str:
    return w.pure(f"trunc i16 {x} to {narrow}") if narrow else x


def _unpack(w: Writer, value: str, type: str, count: int) -> list[str]:
    return [value] if count == 1 else w.unpack_struct(value, p.struct(type, count), count)


def _zero(type: str) -> str:
    return "0.0" if type in ("float", "double") else "0"


def _atomic_type(kind: str, elem: ElementType) -> tuple[str, str]:
    """Return (register type, PTX type suffix) of an atomic."""
    if kind == "add" and elem in (float32, float64):
        return ("float", "f32") if elem is float32 else ("double", "f64")
    if kind == "add" and elem in (float16, bfloat16):
        return "i16", elem.ptx
    bits = f"i{elem.bits}"
    if kind in ("and", "or", "xor", "xchg"):
        return bits, f"b{elem.bits}"
    # Two's complement addition has no sign; PTX knows s64 only for min and max.
    signed = elem.signed and (kind != "add")
    return bits, f"{'s' if signed else 'u'}{elem.bits}"
