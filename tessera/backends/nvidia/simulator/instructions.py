"""Runs LLVM's instructions on the values of all threads. A maker gives the function that a step runs on the slots."""

# pyright: basic
# the text is our own: patterns match
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.backends.nvidia.primitives import Primitive, lanes
from tessera.backends.nvidia.simulator.intrinsics import intrinsic
from tessera.backends.nvidia.simulator.text import VECTOR, split_args, typed

__all__ = ["MAKERS", "intrinsic", "row"]

Env = list[Any]
Slots = Callable[[str, str], int]
EFFECT = 1  # the mark of a step that is run even if nobody needs its result


def _c_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Toward zero; not by absolute values, which the least integer has not."""
    y = np.where(y == 0, 1, y)
    q = x // y
    return q + ((x - q * y != 0) & ((x < 0) != (y < 0)))


def _c_rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x - _c_div(x, y) * np.where(y == 0, 1, y)


def _shift(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, b: f(x, y) if b <= 64 else [int(f(int(p), int(q))) for p, q in zip(x, y)]


INTEGER: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, b: x + y, "sub": lambda x, y, b: x - y, "mul": lambda x, y, b: x * y,
    "and": lambda x, y, b: x & y, "or": lambda x, y, b: x | y, "xor": lambda x, y, b: x ^ y,
    "shl": _shift(lambda x, y: x << y), "lshr": _shift(lambda x, y: x >> y),
    "ashr": lambda x, y, b: (lanes.signed(x, b) >> y.astype(np.int64)).view(np.uint64),
    "udiv": lambda x, y, b: x // np.where(y == 0, np.uint64(1), y),
    "urem": lambda x, y, b: x % np.where(y == 0, np.uint64(1), y),
    "sdiv": lambda x, y, b: _c_div(lanes.signed(x, b), lanes.signed(y, b)).view(np.uint64),
    "srem": lambda x, y, b: _c_rem(lanes.signed(x, b), lanes.signed(y, b)).view(np.uint64),
}  # fmt: skip
# Those that never need more bits than their operands.
CLOSED = {"and", "or", "xor", "lshr", "udiv", "urem"}
REAL = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide}
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _binary(program: object, opcode: str, rest: str, slot: Slots):
    rest = re.sub(r"^(?:(?:contract|disjoint|nsw|nuw) )+", "", rest)
    first, second = split_args(rest)
    type, text = typed(first)
    elem = VECTOR.match(type)[2] if type.startswith("<") else type
    a, b = slot(type, text), slot(type, second)
    if opcode in REAL:
        how = REAL[opcode]
        if elem == "bfloat":
            return lambda env: lanes.round_bf16(how(env[a], env[b])), 0
        return lambda env: how(env[a], env[b]), 0
    f, bits = INTEGER[opcode], lanes.bits_of(elem)
    if bits > 64:
        top = (1 << bits) - 1
        return lambda env: np.array([int(v) & top for v in f(env[a], env[b], bits)], object), 0
    if opcode in CLOSED or bits == 64:
        return lambda env: f(env[a], env[b], bits), 0
    mask = np.uint64((1 << bits) - 1)
    return lambda env: f(env[a], env[b], bits) & mask, 0


# --- conversions --------------------------------------------------------------------------------------------------
def _conversion(program: object, opcode: str, rest: str, slot: Slots):
    first, _, target = rest.partition(" to ")
    type, text = typed(first)
    target = "ptr" if target.startswith("ptr") else target
    if text == "@smem":
        return lambda m, env: m.place("shared"), EFFECT
    a = slot(type, text)
    if opcode in ("addrspacecast", "inttoptr", "ptrtoint"):
        return lambda env: env[a], 0
    change = bitcast(type, target) if opcode == "bitcast" else _convert(opcode, type, target)
    return lambda env: change(env[a]), 0


def _convert(opcode: str, type: str, target: str) -> Callable[[Any], Any]:
    if opcode in ("trunc", "zext"):
        return _resize(lanes.bits_of(type), lanes.bits_of(target))
    if opcode == "sext":
        source, bits = lanes.bits_of(type), lanes.bits_of(target)
        return lambda x: lanes.mask_int(lanes.signed(x, source).view(np.uint64), bits)
    if opcode in ("fptrunc", "fpext"):
        elem = re.search(r"(\w+)>?$", target)[1]
        return lanes.round_bf16 if elem == "bfloat" else lambda x: x.astype(lanes.FLOAT[elem])
    if opcode in ("sitofp", "uitofp"):
        bits = lanes.bits_of(type)
        whole = (lambda x: lanes.signed(x, bits)) if opcode == "sitofp" else (lambda x: x)
        if target == "bfloat":
            return lambda x: lanes.round_bf16(whole(x).astype(np.float64))
        return lambda x: whole(x).astype(lanes.FLOAT[target])
    bits = lanes.bits_of(target)
    return lambda x: lanes.mask_int(np.trunc(x).astype(np.int64).view(np.uint64), bits)


def _resize(source: int, target: int) -> Callable[[Any], Any]:
    if max(source, target) <= 64:
        return (lambda x: x) if target > source else (lambda x: lanes.mask_int(x, target))
    top = (1 << target) - 1

    def change(x: np.ndarray) -> Any:
        wide = np.array([int(v) & top for v in x], object)
        return wide if target > 64 else wide.astype(np.uint64)

    return change


def bitcast(a: str, b: str) -> Callable[[Any], Any]:
    va, vb = VECTOR.match(a), VECTOR.match(b)

    def raw_of(x: np.ndarray) -> Any:
        if not va:
            return lanes.to_raw(a, x)
        width = np.uint64(lanes.bits_of(va[2]))
        parts = [lanes.to_raw(va[2], np.ascontiguousarray(x[:, i])) for i in range(int(va[1]))]
        out = parts[0]
        for i, part in enumerate(parts[1:], 1):
            out = out | part << np.uint64(i) * width
        return out

    def value_of(raw: np.ndarray) -> Any:
        if not vb:
            return lanes.from_raw(b, raw)
        width = lanes.bits_of(vb[2])
        parts = [lanes.mask_int(raw >> np.uint64(i * width), width) for i in range(int(vb[1]))]
        return np.stack([lanes.from_raw(vb[2], p) for p in parts], axis=1)

    return lambda x: value_of(raw_of(x))


# --- comparisons ----------------------------------------------------------------------------------------------------
def _icmp(program: object, opcode: str, rest: str, slot: Slots):
    how, _, rest = rest.partition(" ")
    first, second = split_args(rest)
    type, text = typed(first)
    a, b, bits = slot(type, text), slot(type, second), lanes.bits_of(type)
    compare = COMPARE[how if how in ("eq", "ne") else how[1:]]
    if how[0] == "s":
        signed = lanes.signed
        return lambda env: compare(signed(env[a], bits), signed(env[b], bits)).astype(np.uint64), 0
    return lambda env: compare(env[a], env[b]).astype(np.uint64), 0


def _fcmp(program: object, opcode: str, rest: str, slot: Slots):
    how, _, rest = rest.partition(" ")
    first, second = split_args(rest)
    type, text = typed(first)
    a, b = slot(type, text), slot(type, second)

    def run(env: Env) -> Any:
        x, y = env[a], env[b]
        nan = np.isnan(x) | np.isnan(y)
        if how in ("uno", "ord"):
            return (nan == (how == "uno")).astype(np.uint64)
        return np.where(nan, how[0] == "u", COMPARE[how[1:]](x, y)).astype(np.uint64)

    return run, 0


def _select(program: object, opcode: str, rest: str, slot: Slots):
    c, a, b = (slot(*typed(x)) for x in split_args(rest))

    def run(env: Env) -> Any:
        x = env[a]
        chosen = env[c].astype(bool)
        return np.where(chosen if x.ndim == 1 else chosen[:, None], x, env[b])

    return run, 0


def _fneg(program: object, opcode: str, rest: str, slot: Slots):
    a = slot(*typed(rest))
    return lambda env: -env[a], 0


# --- addresses and tables -------------------------------------------------------------------------------------------
def _getelementptr(program: object, opcode: str, rest: str, slot: Slots):
    parts = split_args(rest)
    if len(parts) == 4:  # into a table
        table, index = typed(parts[1])[1], slot(*typed(parts[3]))
        return lambda env: (table, env[index]), 0
    type, offset = typed(parts[2])
    base, by, bits = slot("ptr", typed(parts[1])[1]), slot(type, offset), lanes.bits_of(type)
    return lambda env: env[base] + lanes.signed(env[by], bits).view(np.uint64), 0


def _load(program: Any, opcode: str, rest: str, slot: Slots):
    parts = split_args(rest)
    place, size = slot("ptr", typed(parts[1])[1]), lanes.bits_of(parts[0]) // 8
    tables = program.tables

    def run(m: Any, env: Env) -> Any:
        if isinstance(env[place], tuple):
            name, at = env[place]
            return tables[name][np.where(m.on, at, 0).astype(np.int64)]
        return m.load("global", env[place], 1, size, m.on)[:, 0]

    return run, EFFECT


def _alloca(program: object, opcode: str, rest: str, slot: Slots):
    return lambda m, env: m.stack(), EFFECT


def _store(program: object, opcode: str, rest: str, slot: Slots):
    (type, value), place = typed(split_args(rest)[0]), slot("ptr", typed(split_args(rest)[1])[1])
    source = slot(type, value)
    return lambda m, env: m.local.__setitem__(int(env[place][0]), (type, env[source])), EFFECT


# --- vectors and structs ----------------------------------------------------------------------------------------------
def _insertelement(program: object, opcode: str, rest: str, slot: Slots):
    parts = [typed(x) for x in split_args(rest)]
    vector, elem, index = slot(*parts[0]), slot(*parts[1]), int(parts[2][1])

    def run(env: Env) -> Any:
        x = env[vector].copy()
        x[:, index] = env[elem]
        return x

    return run, 0


def _extractelement(program: object, opcode: str, rest: str, slot: Slots):
    vector, index = (typed(x) for x in split_args(rest))
    v, i = slot(*vector), int(index[1])
    return lambda env: np.ascontiguousarray(env[v][:, i]), 0


def _shufflevector(program: object, opcode: str, rest: str, slot: Slots):
    first, second, mask = split_args(rest)
    a, b = (slot(*typed(x)) for x in (first, second))
    chosen = [int(i) for i in re.findall(r"i32 (\d+)", mask)]
    return lambda env: np.concatenate([env[a], env[b]], axis=1)[:, chosen], 0


def _extractvalue(program: object, opcode: str, rest: str, slot: Slots):
    struct, index = split_args(rest)
    s, i = slot("", typed(struct)[1]), int(index)
    return lambda env: env[s][i], 0


def _insertvalue(program: object, opcode: str, rest: str, slot: Slots):
    struct, elem, index = split_args(rest)
    s, e, i = slot("{}", typed(struct)[1]), slot(*typed(elem)), int(index)
    return lambda env: (*env[s][:i], env[e]), 0


MAKERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys([*INTEGER, *REAL], _binary),
    **dict.fromkeys(
        ["bitcast", "trunc", "zext", "sext", "fptrunc", "fpext", "sitofp", "uitofp", "fptosi", "fptoui",
         "inttoptr", "ptrtoint", "addrspacecast"], _conversion,
    ),
    "icmp": _icmp, "fcmp": _fcmp, "select": _select, "fneg": _fneg, "getelementptr": _getelementptr,
    "load": _load, "alloca": _alloca, "store": _store, "insertelement": _insertelement,
    "extractelement": _extractelement, "shufflevector": _shufflevector, "extractvalue": _extractvalue,
    "insertvalue": _insertvalue,
}  # fmt: skip


# --- calls --------------------------------------------------------------------------------------------------------
def row(of: Primitive, slots: list[int], many: bool) -> Callable[..., Any]:
    """A primitive's meaning. `many`: its result is a struct."""
    meaning: Any = of.meaning

    def single(x: np.ndarray) -> Any:
        return x if many or not isinstance(x, tuple) else x[0]

    if of.uses_machine:
        return lambda m, env: single(meaning(m, *[env[s] for s in slots]))
    return lambda env: single(meaning(*[env[s] for s in slots]))
