"""Lists loads and stores of global and shared memory, atomics, and asynchronous copies by threads (cp.async)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.backends.nvidia.primitives.lanes import (
    FLOAT,
    bits_of,
    from_raw,
    mask_int,
    round_bf16,
    to_raw,
)
from tessera.backends.nvidia.primitives.row import (
    Lanes,
    Machine,
    Primitive,
    braces,
    family,
    letter,
    listed,
    row,
    struct,
)

__all__ = [
    "add_vector", "async_copy", "async_copy_where", "async_wait", "atomic", "atomic_shared_add", "load_global",
    "load_matrix", "load_shared", "store_global", "store_matrix", "store_shared",
]  # fmt: skip

# (old bits, operands' bits) → new bits.
Combine = Callable[[int, int], int] | Callable[[int, int, int], int]


def vector_suffix(count: int, bits: int) -> str:
    return (f".v{count}" if count > 1 else "") + f".b{bits}"


def _words(type: str, raw: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(from_raw(type, np.ascontiguousarray(raw[:, k])) for k in range(raw.shape[1]))


@family
def load_global(
    modifiers: str, bits: int, count: int, type: str, offset: int, predicated: bool
) -> Primitive:
    """ld.global of `count` words. If predicated, as many extra operands are tied to the result, for a false
    predicate."""
    result = struct(type, count)
    c = letter(type)
    constraints = ",".join([f"={c}"] * count)
    address = count * (2 if predicated else 1)
    text = f"ld{modifiers}{vector_suffix(count, bits)} {braces(0, count)}, [${address} + {offset}];"
    operands: list[str] = []
    if predicated:
        operands = [type] * count
        constraints += "," + ",".join([str(i) for i in range(count)])
        text = f"@${address + 1} {text}"
    operands.append("ptr addrspace(1)")
    constraints += ",l"
    if predicated:
        operands.append("i1")
        constraints += ",b"

    def meaning(m: Machine, *args: Lanes) -> tuple[Lanes, ...]:
        if not predicated:
            raw = m.load("global", args[0] + _signed(offset), count, bits // 8, m.on)
            return _words(type, raw)
        *others, where, mask = args
        mask = m.on & mask.astype(bool)
        found = _words(type, m.load("global", where + _signed(offset), count, bits // 8, mask))
        return tuple(np.where(mask, x, o) for x, o in zip(found, others))

    return Primitive(
        "load_global", tuple(operands), result, text, constraints, False, meaning, True
    )


def _signed(offset: int) -> np.uint64:
    return np.uint64(offset & (2**64 - 1))


@family
def store_global(
    modifiers: str, bits: int, count: int, type: str, offset: int, predicated: bool
) -> Primitive:
    text = f"st{modifiers}{vector_suffix(count, bits)} [$0 + {offset}], {braces(1, count)};"
    return _store("global", "ptr addrspace(1)", text, type, (count, bits, offset), predicated)


def _store(
    space: str, address: str, text: str, type: str, how: tuple[int, int, int], predicated: bool
) -> Primitive:
    count, bits, offset = how
    operands = [address] + [type] * count
    constraints = [letter(address)] + [letter(type)] * count
    if predicated:
        text = f"@${count + 1} {text}"
        operands.append("i1")
        constraints.append("b")

    def meaning(m: Machine, where: Lanes, *rest: Lanes) -> None:
        mask = m.on & rest[-1].astype(bool) if predicated else m.on
        raw = np.stack([to_raw(type, x) for x in rest[:count]], axis=1)
        m.store(space, where + _signed(offset), mask_int(raw, bits), bits // 8, mask)

    name, letters = f"store_{space}", ",".join(constraints)
    return Primitive(name, tuple(operands), "void", text, letters, False, meaning, True)


@family
def load_shared(bits: int, count: int, type: str, offset: int) -> Primitive:
    outputs = ",".join([f"={letter(type)}"] * count)
    text = f"ld.shared{vector_suffix(count, bits)} {braces(0, count)}, [${count} + {offset}];"

    def meaning(m: Machine, where: Lanes) -> tuple[Lanes, ...]:
        return _words(type, m.load("shared", where + _signed(offset), count, bits // 8, m.on))

    return Primitive(
        "load_shared", ("i32",), struct(type, count), text, outputs + ",r", False, meaning, True
    )


@family
def store_shared(bits: int, count: int, type: str, offset: int, predicated: bool) -> Primitive:
    text = f"st.shared{vector_suffix(count, bits)} [$0 + {offset}], {braces(1, count)};"
    return _store("shared", "i32", text, type, (count, bits, offset), predicated)


# --- atomics --------------------------------------------------------------------------------------------------
def combiner(kind: str) -> Combine:
    """Return what `add.f32`, `cas.b64`, ... compute: (old bits, operands' bits) → new bits."""
    how, ptx = kind.split(".")[0], kind.rsplit(".", 1)[1]
    letters = ptx.rstrip("0123456789")
    bits = int(ptx[len(letters) :])
    if how == "cas":
        return lambda old, expected, new: new if old == expected else old
    if how == "exch":
        return lambda old, new: new
    if letters in ("f", "bf"):
        type = "bfloat" if letters == "bf" else {16: "half", 32: "float", 64: "double"}[bits]
        return lambda old, new: _float_sum(type, old, new)
    key: Callable[[int], int] = (
        (lambda v: v - (v >> (bits - 1) << bits)) if letters == "s" else (lambda v: v)
    )
    top = (1 << bits) - 1
    found: dict[str, Combine] = {
        "add": lambda old, new: (old + new) & top, "and": lambda old, new: old & new,
        "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new,
        "max": lambda old, new: max(old, new, key=key), "min": lambda old, new: min(old, new, key=key),
    }  # fmt: skip
    return found[how]


def _float_sum(type: str, old: int, new: int) -> int:
    x, y = (from_raw(type, np.array([v], np.uint64)) for v in (old, new))
    total = round_bf16(x + y) if type == "bfloat" else (x + y).astype(FLOAT[type])
    return int(to_raw(type, total)[0])


@family
def atomic(
    modifiers: str, kind: str, type: str, offset: int, operands: int, result: bool
) -> Primitive:
    """atom (its result is tied to a zero for a false predicate) or red. `operands`: 1, or 2 for cas."""
    c = letter(type)
    values = ", ".join([f"${(3 if result else 1) + i}" for i in range(operands)])
    combine, size = combiner(kind), bits_of(kind.rsplit(".", 1)[1].replace("bf", "f")) // 8

    def meaning(m: Machine, *args: Lanes) -> Lanes | None:
        start = args[0]
        where, *given, predicate = args[1:] if result else args
        mask = m.on & predicate.astype(bool)
        raw = [mask_int(to_raw(type, x), 8 * size) for x in given]
        old = m.atomic("global", where + _signed(offset), raw, size, mask, combine)
        return np.where(mask, from_raw(type, old), start) if result else None

    types = ("ptr addrspace(1)", *[type] * operands, "i1")
    letters = ",".join([c] * operands)
    if result:
        text = f"@${3 + operands} atom{modifiers}.{kind} $0, [$2 + {offset}], {values};"
        return Primitive(
            "atomic", (type, *types), type, text, f"={c},0,l,{letters},b", False, meaning, True
        )
    text = f"@${1 + operands} red{modifiers}.{kind} [$0 + {offset}], {values};"
    return Primitive("atomic", types, "void", text, f"l,{letters},b", False, meaning, True)


@family
def add_vector(scope: str, ptx: str, type: str, offset: int, count: int) -> Primitive:
    """Add a vector to adjacent elements in memory (relaxed order); 16-bit sums keep subnormals."""
    noftz = "" if type == "float" else ".noftz"
    sums = f"red.relaxed.{scope}.global.add{noftz}.v{count}.{ptx}"
    text = f"@${count + 1} {sums} [$0 + {offset}], {braces(1, count)};"
    combine, size = combiner(f"add.{ptx}"), bits_of(type) // 8

    def meaning(m: Machine, where: Lanes, *rest: Lanes) -> None:
        mask, start = m.on & rest[-1].astype(bool), where + _signed(offset)
        m.aligned("global", start, count * size, mask)
        for k, x in enumerate(rest[:-1]):
            raw = [mask_int(to_raw(type, x), 8 * size)]
            m.atomic("global", start + np.uint64(k * size), raw, size, mask, combine)

    types = ("ptr addrspace(1)", *[type] * count, "i1")
    letters = ",".join(["l", *[letter(type)] * count, "b"])
    return Primitive("add_vector", types, "void", text, letters, False, meaning, True)


@family
def atomic_shared_add(offset: int) -> Primitive:
    """Add to an i32 in shared memory where the predicate is true."""

    def meaning(m: Machine, where: Lanes, x: Lanes, predicate: Lanes) -> None:
        mask = m.on & predicate.astype(bool)
        m.atomic("shared", where + _signed(offset), [x], 4, mask, combiner("add.u32"))

    text = f"@$2 red.shared.add.u32 [$0 + {offset}], $1;"
    return Primitive(
        "atomic_shared_add", ("i32", "i32", "i1"), "void", text, "r,r,b", False, meaning, True
    )


# --- copies by threads ------------------------------------------------------------------------------------------
row(
    "async_commit", (), "void", "cp.async.commit_group;", "~{memory}", pure=False,
    machine=lambda m: m.copies.commit(m.on),
)  # fmt: skip


@family
def async_wait(pending: int) -> Primitive:
    return Primitive(
        "async_wait", (), "void", f"cp.async.wait_group {pending};", "~{memory}", False,
        lambda m: m.copies.wait(m.on, pending), True,
    )  # fmt: skip


@family
def async_copy(
    bytes: int, modifiers: str, offset: int, source_offset: int, partial: bool
) -> Primitive:
    """cp.async of 4, 8 or 16 bytes; with `partial` a last operand gives the bytes to read, and the rest are zeros."""
    text = f"cp.async.{_cached(bytes)}.shared.global{modifiers} [$0 + {offset}], [$1 + {source_offset}], {bytes}"

    def meaning(m: Machine, to: Lanes, source: Lanes, size: Lanes | None = None) -> None:
        size = np.full(m.threads, bytes, np.uint64) if size is None else size
        m.copies.start(to + _signed(offset), source + _signed(source_offset), size, bytes, m.on)

    types, letters = ("i32", "ptr addrspace(1)"), "r,l"
    if partial:
        types, letters, text = (*types, "i32"), letters + ",r", text + ", $2"
    return Primitive("async_copy", types, "void", text + ";", letters, False, meaning, True)


def _cached(bytes: int) -> str:
    return "cg" if bytes == 16 else "ca"


@family
def async_copy_where(bytes: int, offset: int, source_offset: int) -> Primitive:
    """cp.async where a predicate is true."""
    text = f"@$2 cp.async.{_cached(bytes)}.shared.global [$0 + {offset}], [$1 + {source_offset}], {bytes};"

    def meaning(m: Machine, to: Lanes, source: Lanes, predicate: Lanes) -> None:
        size, mask = np.full(m.threads, bytes, np.uint64), m.on & predicate.astype(bool)
        m.copies.start(to + _signed(offset), source + _signed(source_offset), size, bytes, mask)

    types = ("i32", "ptr addrspace(1)", "i1")
    return Primitive("async_copy", types, "void", text, "r,l,b", False, meaning, True)


# --- matrices of 16-bit elements ----------------------------------------------------------------------------------
_LANES = np.arange(32)
# For each lane, row and column of its two elements in an 8 x 8 matrix.
_ROWS, _COLUMNS = np.stack([_LANES // 4] * 2, 1), np.stack([_LANES % 4 * 2, _LANES % 4 * 2 + 1], 1)


def _elements(trans: bool) -> tuple[np.ndarray, np.ndarray]:
    return (_COLUMNS, _ROWS) if trans else (_ROWS, _COLUMNS)


@family
def load_matrix(count: int, trans: bool, offset: int) -> Primitive:
    """ldmatrix of `count` 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8, and
    gets the two elements at 2 (l % 4) of row l / 4."""
    outputs = ",".join(["=r"] * count)
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16 "
        f"{listed(0, count)}, [${count} + {offset}];"
    )
    rows, columns = _elements(trans)

    def meaning(m: Machine, where: Lanes) -> tuple[Lanes, ...]:
        on = m.whole_warps("ldmatrix")
        lanes = m.on & (np.arange(m.threads) % 32 < 8 * count)
        raw = m.load("shared", where + _signed(offset), 8, 2, lanes)  # [threads, elements of a row]
        raw = raw.reshape(len(on), 4, 8, 8)[:, :count]
        found = raw[:, :, rows, columns]  # [warps, matrices, lanes, 2]
        words = found[..., 0] | found[..., 1] << np.uint64(16)
        return tuple(np.ascontiguousarray(words[:, k]).reshape(-1) for k in range(count))

    return Primitive(
        "load_matrix", ("i32",), struct("i32", count), text, outputs + ",r", False, meaning, True
    )


@family
def store_matrix(count: int, trans: bool, offset: int) -> Primitive:
    """stmatrix: the reverse of `load_matrix`."""
    text = (
        f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16 "
        f"[$0 + {offset}], {listed(1, count)};"
    )
    rows, columns = _elements(trans)

    def meaning(m: Machine, where: Lanes, *words: Lanes) -> None:
        on = m.whole_warps("stmatrix")
        raw = np.zeros((len(on), 4, 8, 8), np.uint64)
        for k, x in enumerate(words):
            pairs = np.stack([mask_int(x, 16), mask_int(x >> np.uint64(16), 16)], 1)
            raw[:, k][:, rows, columns] = pairs.reshape(len(on), 32, 2)
        lanes = m.on & (np.arange(m.threads) % 32 < 8 * count)
        m.store("shared", where + _signed(offset), raw.reshape(m.threads, 8), 2, lanes)

    types, letters = ("i32", *["i32"] * count), ",".join(["r"] * (1 + count))
    return Primitive("store_matrix", types, "void", text, letters, False, meaning, True)
