"""Every NVIDIA instruction that the lowering emits: operand types, PTX or intrinsic, and its meaning over a warp.

`meaning` takes one NumPy array per operand with the lanes of a warp as its first axis and gives the result of all
lanes, so that lowered code can be followed without a GPU. Families (vector widths, atomics, matrix shapes) are
functions that make a row. Rows with `constraints` are inline PTX, the others LLVM intrinsics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tessera.backends.gpu.writer import Writer

Meaning = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One instruction. `operands` and `result` are LLVM types; `pure` ones may be merged and dropped."""

    name: str
    operands: tuple[str, ...]
    result: str
    text: str
    constraints: str = ""
    pure: bool = True
    meaning: Meaning | None = None

    def emit(self, w: Writer, args: Sequence[str]) -> str:
        """Write it; the result's name, "" for void."""
        typed = [f"{t} {a}" for t, a in zip(self.operands, args, strict=True)]
        if self.constraints:
            return w.asm(self.text, self.constraints, typed, self.result, pure=self.pure)
        if self.result == "void":
            w.call_void(self.text, typed)
            return ""
        return w.call(self.result, self.text, typed, pure=self.pure)


PRIMITIVES: dict[str, Primitive] = {}


def _row(
    name: str,
    operands: Sequence[str],
    result: str,
    text: str,
    constraints: str = "",
    *,
    pure: bool = True,
    meaning: Meaning | None = None,
) -> None:
    PRIMITIVES[name] = Primitive(name, tuple(operands), result, text, constraints, pure, meaning)


# --- where a thread is ---------------------------------------------------------------------------------------
_row("thread_index", (), "i32", "llvm.nvvm.read.ptx.sreg.tid.x", meaning=lambda: np.arange(32))
for _axis in "xyz":
    _row(f"program_id_{_axis}", (), "i32", f"llvm.nvvm.read.ptx.sreg.ctaid.{_axis}")
    _row(f"num_programs_{_axis}", (), "i32", f"llvm.nvvm.read.ptx.sreg.nctaid.{_axis}")
_row("cluster_id", (), "i32", "llvm.nvvm.read.ptx.sreg.clusterid.x")
_row("num_clusters", (), "i32", "llvm.nvvm.read.ptx.sreg.nclusterid.x")
_row("block_rank", (), "i32", "llvm.nvvm.read.ptx.sreg.cluster.ctarank")

# --- exchange and order ----------------------------------------------------------------------------------------
SHUFFLE = ("i32", "i32", "i32", "i32")  # members, value, lane or mask, clamp
Lanes = np.ndarray[Any, np.dtype[Any]]


def _xor_meaning(members: Lanes, x: Lanes, mask: Lanes, clamp: Lanes) -> Lanes:
    return x[np.arange(32) ^ mask]


def _index_meaning(members: Lanes, x: Lanes, lane: Lanes, clamp: Lanes) -> Lanes:
    return x[lane & 31]


def _rsqrt_meaning(x: Lanes) -> Lanes:
    return 1 / np.sqrt(x)


_row(
    "shuffle_xor", SHUFFLE, "i32", "llvm.nvvm.shfl.sync.bfly.i32", pure=False,
    meaning=_xor_meaning,
)  # fmt: skip
_row(
    "shuffle_index", SHUFFLE, "i32", "llvm.nvvm.shfl.sync.idx.i32", pure=False,
    meaning=_index_meaning,
)  # fmt: skip
_row("barrier", (), "void", "bar.sync 0;", "~{memory}", pure=False)
_row("proxy_fence", (), "void", "fence.proxy.async.shared::cta;", "~{memory}", pure=False)
_row("globaltimer", (), "i64", "mov.u64 $0, %globaltimer;", "=l", pure=False)
_row("smid", (), "i32", "mov.u32 $0, %smid;", "=r", pure=False)
_row("grid_wait", (), "void", "griddepcontrol.wait;", "~{memory}", pure=False)
_row(
    "grid_launch_dependents", (), "void", "griddepcontrol.launch_dependents;", "~{memory}", pure=False
)  # fmt: skip
_row("trap", (), "void", "trap;", "~{memory}", pure=False)
_row("membar_cta", (), "void", "fence.acq_rel.cta;", "~{memory}", pure=False)

# --- arithmetic ------------------------------------------------------------------------------------------------
_F, _D = "float", "double"
_row("exp2.float", (_F,), _F, "ex2.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.exp2)
_row(
    "rsqrt.float",
    (_F,),
    _F,
    "rsqrt.approx.ftz.f32 $0, $1;",
    "=f,f",
    meaning=_rsqrt_meaning,
)
_row("sqrt.float", (_F,), _F, "sqrt.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.sqrt)
_row("sqrt_rn.float", (_F,), _F, "sqrt.rn.f32 $0, $1;", "=f,f", meaning=np.sqrt)
_row("sqrt_rn.double", (_D,), _D, "sqrt.rn.f64 $0, $1;", "=d,d", meaning=np.sqrt)
_row("div.float", (_F, _F), _F, "div.full.f32 $0, $1, $2;", "=f,f,f", meaning=np.divide)
_row("rcp.float", (_F,), _F, "rcp.approx.ftz.f32 $0, $1;", "=f,f", meaning=np.reciprocal)
_row("to_fp16_rtz.float", (_F,), "half", "cvt.rz.f16.f32 $0, $1;", "=h,f")
_row("to_bf16_rtz.float", (_F,), "bfloat", "cvt.rz.bf16.f32 $0, $1;", "=h,f")
_row("to_fp32_rtz.double", (_D,), _F, "cvt.rz.f32.f64 $0, $1;", "=f,d")
_row("to_fp16_rtz.double", (_D,), "half", "cvt.rz.f16.f64 $0, $1;", "=h,d")
_row("to_tf32", (_F,), _F, "cvt.rna.tf32.f32 $0, $1;", "=f,f")
# Two 8-bit floats at a time: the first operand of the narrowing ends up in the high byte.
for _name, _fp8 in (("fp8e4nv", "e4m3"), ("fp8e5", "e5m2")):
    _row(f"to_{_name}", (_F, _F), "i16", f"cvt.rn.satfinite.{_fp8}x2.f32 $0, $1, $2;", "=h,f,f")
    _row(f"from_{_name}", ("i16",), "i32", f"cvt.rn.f16x2.{_fp8}x2 $0, $1;", "=r,h")

# --- asynchronous copies -----------------------------------------------------------------------------------------
_row("async_commit", (), "void", "cp.async.commit_group;", "~{memory}", pure=False)

_row(
    "mbarrier_fence", (), "void", "fence.mbarrier_init.release.cluster;", "~{memory}", pure=False
)  # fmt: skip
_row("mbarrier_inval", ("i32",), "void", "mbarrier.inval.shared::cta.b64 [$0];", "r", pure=False)
_row(
    "mbarrier_arrive", ("i32",), "void", "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", pure=False
)  # fmt: skip
_row(
    "mbarrier_try", ("i32", "i32"), "i32",
    "{ .reg .pred P; mbarrier.try_wait.parity.shared::cta.b64 P, [$1], $2; selp.b32 $0, 1, 0, P; }",
    "=r,r,r", pure=False,
)  # fmt: skip
_row("prefetch_map", ("ptr",), "void", "prefetch.tensormap [$0];", "l", pure=False)
_row(
    "elect", (), "i32", "{ .reg .pred P; elect.sync _|P, 0xffffffff; selp.b32 $0, 1, 0, P; }", "=r",
    pure=False,
)  # fmt: skip
_row("bulk_commit", (), "void", "cp.async.bulk.commit_group;", "~{memory}", pure=False)
_row(
    "mbarrier_arrive_in", ("i32", "i32"), "void",
    "{ .reg .b32 R; mapa.shared::cluster.u32 R, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [R]; }",
    "r,r", pure=False,
)  # fmt: skip
_row(
    "cluster_barrier",
    (),
    "void",
    "barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
    "~{memory}",
    pure=False,
)
_row("proxy_fence_all", (), "void", "fence.proxy.async;", "~{memory}", pure=False)
_row("warp_sync", (), "void", "bar.warp.sync 0xffffffff;", "~{memory}", pure=False)
# No arrival behind it is issued before the first operand is there: for one value of it a word is read from the address
# that comes second, and an arrival passes no access in front of it. What was read may still be on its way when it is
# issued, though, and the copy engine, which then may write, overtakes it.
_row(
    "await_word", ("i32", "i32"), "void",
    "{ .reg .pred p; .reg .b32 t; setp.eq.u32 p, $0, 0x9e3779b9; @p ld.volatile.shared.b32 t, [$1]; }",
    "r,r,~{memory}", pure=False,
)  # fmt: skip

LETTERS = {"float": "f", "double": "d", "i64": "l", "i32": "r", "i16": "h", "i8": "r", "half": "h"}


def letter(type: str) -> str:
    """The constraint letter of an LLVM type."""
    return "l" if type.startswith("ptr") else LETTERS[type]


def struct(type: str, count: int) -> str:
    return type if count == 1 else "{" + ", ".join([type] * count) + "}"


def braces(first: int, count: int) -> str:
    """PTX operand list {$first, ...}; a single operand stands alone."""
    names = ",".join(f"${first + i}" for i in range(count))
    return f"{{{names}}}" if count > 1 else names


def vector_suffix(count: int, bits: int) -> str:
    return (f".v{count}" if count > 1 else "") + f".b{bits}"


@lru_cache(maxsize=512)
def load_global(
    modifiers: str, bits: int, count: int, type: str, offset: int, predicated: bool
) -> Primitive:
    """ld.global of `count` words. Predicated: the result is tied to as many extra operands, used where it is off."""
    result = struct(type, count)
    c = letter(type)
    outputs = ",".join([f"={c}"] * count)
    address = count * (2 if predicated else 1)
    text = f"ld{modifiers}{vector_suffix(count, bits)} {braces(0, count)}, [${address} + {offset}];"
    operands: list[str] = []
    constraints = outputs
    if predicated:
        operands = [type] * count
        constraints += "," + ",".join(str(i) for i in range(count))
        text = f"@${address + 1} {text}"
    operands.append("ptr addrspace(1)")
    constraints += ",l"
    if predicated:
        operands.append("i1")
        constraints += ",b"
    return Primitive("load_global", tuple(operands), result, text, constraints, False)


@lru_cache(maxsize=512)
def store_global(
    modifiers: str, bits: int, count: int, type: str, offset: int, predicated: bool
) -> Primitive:
    text = f"st{modifiers}{vector_suffix(count, bits)} [$0 + {offset}], {braces(1, count)};"
    return _store("store_global", "ptr addrspace(1)", text, type, count, predicated)


def _store(
    name: str, address: str, text: str, type: str, count: int, predicated: bool
) -> Primitive:
    operands = [address] + [type] * count
    constraints = [letter(address)] + [letter(type)] * count
    if predicated:
        text = f"@${count + 1} {text}"
        operands.append("i1")
        constraints.append("b")
    return Primitive(name, tuple(operands), "void", text, ",".join(constraints), False)


@lru_cache(maxsize=512)
def load_shared(bits: int, count: int, type: str, offset: int) -> Primitive:
    outputs = ",".join([f"={letter(type)}"] * count)
    text = f"ld.shared{vector_suffix(count, bits)} {braces(0, count)}, [${count} + {offset}];"
    return Primitive("load_shared", ("i32",), struct(type, count), text, outputs + ",r", False)


@lru_cache(maxsize=512)
def store_shared(bits: int, count: int, type: str, offset: int, predicated: bool) -> Primitive:
    text = f"st.shared{vector_suffix(count, bits)} [$0 + {offset}], {braces(1, count)};"
    return _store("store_shared", "i32", text, type, count, predicated)


@lru_cache(maxsize=256)
def atomic(
    modifiers: str, kind: str, type: str, offset: int, operands: int, result: bool
) -> Primitive:
    """atom (with a result, tied to a zero where the predicate is off) or red. `operands`: 1, or 2 for cas."""
    c = letter(type)
    values = ", ".join(f"${(3 if result else 1) + i}" for i in range(operands))
    if result:
        text = f"@${3 + operands} atom{modifiers}.{kind} $0, [$2 + {offset}], {values};"
        types = (type, "ptr addrspace(1)", *[type] * operands, "i1")
        constraints = f"={c},0,l," + ",".join([c] * operands) + ",b"
        return Primitive("atomic", types, type, text, constraints, False)
    text = f"@${1 + operands} red{modifiers}.{kind} [$0 + {offset}], {values};"
    types = ("ptr addrspace(1)", *[type] * operands, "i1")
    return Primitive("atomic", types, "void", text, "l," + ",".join([c] * operands) + ",b", False)


@lru_cache(maxsize=64)
def add_vector(scope: str, ptx: str, type: str, offset: int, count: int) -> Primitive:
    """Relaxed sums of neighbours in memory, 16-bit ones without flushing subnormals."""
    noftz = "" if type == "float" else ".noftz"
    text = (
        f"red.relaxed.{scope}.global.add{noftz}.v{count}.{ptx} [$0 + {offset}], {braces(1, count)};"
    )
    return _store("add_vector", "ptr addrspace(1)", text, type, count, True)


@lru_cache(maxsize=8)
def memory_fence(scope: str) -> Primitive:
    return Primitive("memory_fence", (), "void", f"fence.acq_rel.{scope};", "~{memory}", False)


@lru_cache(maxsize=64)
def atomic_shared_add(offset: int) -> Primitive:
    """Add to an i32 in shared memory where the predicate is on."""
    text = f"@$2 red.shared.add.u32 [$0 + {offset}], $1;"
    return Primitive("atomic_shared_add", ("i32", "i32", "i1"), "void", text, "r,r,b", False)


@lru_cache(maxsize=256)
def async_copy(
    bytes: int, modifiers: str, offset: int, source_offset: int, partial: bool
) -> Primitive:
    """cp.async of 4, 8 or 16 bytes; `partial`: a last operand says how many bytes to read, the rest are zeros."""
    kind = "cg" if bytes == 16 else "ca"
    text = (
        f"cp.async.{kind}.shared.global{modifiers} [$0 + {offset}], [$1 + {source_offset}], {bytes}"
    )
    if partial:
        return Primitive(
            "async_copy", ("i32", "ptr addrspace(1)", "i32"), "void", text + ", $2;", "r,l,r", False
        )
    return Primitive("async_copy", ("i32", "ptr addrspace(1)"), "void", text + ";", "r,l", False)


@lru_cache(maxsize=256)
def async_copy_where(bytes: int, offset: int, source_offset: int) -> Primitive:
    """cp.async where a predicate is on."""
    kind = "cg" if bytes == 16 else "ca"
    text = f"@$2 cp.async.{kind}.shared.global [$0 + {offset}], [$1 + {source_offset}], {bytes};"
    types = ("i32", "ptr addrspace(1)", "i1")
    return Primitive("async_copy", types, "void", text, "r,l,b", False)


@lru_cache(maxsize=32)
def async_wait(pending: int) -> Primitive:
    return Primitive(
        "async_wait", (), "void", f"cp.async.wait_group {pending};", "~{memory}", False
    )


@lru_cache(maxsize=128)
def load_matrix(count: int, trans: bool, offset: int) -> Primitive:
    """ldmatrix: `count` 8x8 matrices of 16-bit elements, lane l gives the address of row l % 8 of matrix l / 8."""
    outputs = ",".join(["=r"] * count)
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16 "
        f"{{{','.join(f'${i}' for i in range(count))}}}, [${count} + {offset}];"
    )
    return Primitive("load_matrix", ("i32",), struct("i32", count), text, outputs + ",r", False)


@lru_cache(maxsize=128)
def store_matrix(count: int, trans: bool, offset: int) -> Primitive:
    words = f"{{{','.join(f'${1 + i}' for i in range(count))}}}"
    text = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16 [$0 + {offset}], {words};"
    types = ("i32", *["i32"] * count)
    return Primitive("store_matrix", types, "void", text, ",".join(["r"] * (1 + count)), False)


@lru_cache(maxsize=64)
def mma(asm: str, acc: str, counts: tuple[int, int, int], word: str) -> Primitive:
    """One matrix instruction: accumulators tied in and out, then the words of A and of B.

    `counts`: words of A, of B, accumulator registers; `word` is the type of the operand words.
    """
    a, b, c = counts
    kind = letter(acc)
    operands = (*[acc] * c, *[word] * (a + b))
    constraints = ",".join(
        [*[f"={kind}"] * c, *[str(i) for i in range(c)], *[letter(word)] * (a + b)]
    )
    text = f"{asm} {braces(0, c)}, {_list(2 * c, a)}, {_list(2 * c + a, b)}, {braces(0, c)};"
    return Primitive("mma", operands, struct(acc, c), text, constraints, True)


def _list(first: int, count: int) -> str:
    return "{" + ",".join(f"${first + i}" for i in range(count)) + "}"


# --- the tensor engine ---------------------------------------------------------------------------------------
@lru_cache(maxsize=32)
def team_barrier(number: int, threads: int) -> Primitive:
    return Primitive("barrier", (), "void", f"bar.sync {number}, {threads};", "~{memory}", False)


@lru_cache(maxsize=32)
def team_arrive(number: int, threads: int) -> Primitive:
    """At a barrier at which others wait."""
    return Primitive("barrier", (), "void", f"bar.arrive {number}, {threads};", "~{memory}", False)


@lru_cache(maxsize=4)
def group_barrier(threads: int) -> Primitive:
    """The barrier whose number is the operand."""
    return Primitive("barrier", ("i32",), "void", f"bar.sync $0, {threads};", "r", False)


@lru_cache(maxsize=32)
def mbarrier_init(count: int) -> Primitive:
    text = f"mbarrier.init.shared::cta.b64 [$0], {count};"
    return Primitive("mbarrier_init", ("i32",), "void", text, "r", False)


@lru_cache(maxsize=64)
def mbarrier_expect(bytes: int) -> Primitive:
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes};"
    return Primitive("mbarrier_expect", ("i32",), "void", text, "r", False)


@lru_cache(maxsize=16)
def tensor_load(rank: int, blocks: int = 1) -> Primitive:
    """Operands: shared address, map, barrier, coordinates from the contiguous one; with several `blocks` of a cluster
    also a mask of those that get the box."""
    at = ", ".join(f"${3 + i}" for i in range(rank))
    how, mask = ("", "") if blocks == 1 else (".multicast::cluster", f", ${3 + rank}")
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{how} "
        f"[$0], [$1, {{{at}}}], [$2]{mask};"
    )
    types = ("i32", "ptr", "i32", *["i32"] * rank, *["i16"] * bool(mask))
    constraints = "r,l,r" + ",r" * rank + ",h" * bool(mask)
    return Primitive("tensor_load", types, "void", text, constraints, False)


@lru_cache(maxsize=64)
def tensor_store(rank: int, reduction: str = "") -> Primitive:
    """Operands: map, shared address, coordinates from the contiguous one."""
    at = ", ".join(f"${2 + i}" for i in range(rank))
    kind = f"cp.reduce.async.bulk.tensor.{rank}d" if reduction else f"cp.async.bulk.tensor.{rank}d"
    how = f".{reduction}.tile" if reduction else ""
    text = f"{kind}.global.shared::cta{how}.bulk_group [$0, {{{at}}}], [$1];"
    types = ("ptr", "i32", *["i32"] * rank)
    return Primitive("tensor_store", types, "void", text, "l,r" + ",r" * rank, False)


@lru_cache(maxsize=16)
def bulk_wait(pending: int, read: bool) -> Primitive:
    text = f"cp.async.bulk.wait_group{'.read' if read else ''} {pending};"
    return Primitive("bulk_wait", (), "void", text, "~{memory}", False)


@lru_cache(maxsize=64)
def set_registers(grow: bool, count: int) -> Primitive:
    text = f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32 {count};"
    return Primitive("set_registers", (), "void", text, "~{memory}", False)
