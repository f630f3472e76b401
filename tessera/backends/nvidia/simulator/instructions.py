"""Runs LLVM's instructions on the values of all threads. A maker returns the function that a step runs on slots."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from tessera.backends.nvidia.primitives import Primitive, lanes
from tessera.backends.nvidia.primitives.row import Lanes, Machine
from tessera.backends.nvidia.simulator.intrinsics import intrinsic
from tessera.backends.nvidia.simulator.text import Value, split_args, typed, vector_of

__all__ = ["MAKERS", "Env", "Run", "intrinsic", "row"]

Env = list[Any]  # the value of each slot, whose kind its instruction knows
Slots = Callable[[str, str], int]
Tables = dict[str, Lanes]  # constant arrays by name
Run = Callable[..., Value]  # takes (env), or (machine, env) for an effect
Made = tuple[Run, bool]  # and whether it is an effect: run even if its result is not needed
Unary = Callable[[Lanes], Lanes]
Binary = Callable[[Lanes, Lanes], Lanes]


def _one(f: Unary, a: int) -> Made:
    def run(env: Env) -> Lanes:
        return f(env[a])

    return run, False


def _two(f: Binary, a: int, b: int) -> Made:
    def run(env: Env) -> Lanes:
        return f(env[a], env[b])

    return run, False


def _c_div(x: Lanes, y: Lanes) -> Lanes:
    """Divide, rounding toward zero; not by absolute values, since the least integer has none."""
    y = np.where(y == 0, 1, y)
    q = x // y
    return q + ((x - q * y != 0) & ((x < 0) != (y < 0)))


def _c_rem(x: Lanes, y: Lanes) -> Lanes:
    return x - _c_div(x, y) * np.where(y == 0, 1, y)


def _shift(how: Callable[[Any, Any], Any]) -> Callable[[Lanes, Lanes, int], Lanes]:
    def run(x: Lanes, y: Lanes, bits: int) -> Lanes:
        if bits <= 64:
            return how(x, y)
        return np.array([how(int(p), int(q)) for p, q in zip(x, y)], object)

    return run


INTEGER: dict[str, Callable[[Lanes, Lanes, int], Lanes]] = {
    "add": lambda x, y, b: x + y, "sub": lambda x, y, b: x - y, "mul": lambda x, y, b: x * y,
    "and": lambda x, y, b: x & y, "or": lambda x, y, b: x | y, "xor": lambda x, y, b: x ^ y,
    "shl": _shift(lambda x, y: x << y), "lshr": _shift(lambda x, y: x >> y),
    "ashr": lambda x, y, b: (lanes.signed(x, b) >> y.astype(np.int64)).view(np.uint64),
    "udiv": lambda x, y, b: x // np.where(y == 0, np.uint64(1), y),
    "urem": lambda x, y, b: x % np.where(y == 0, np.uint64(1), y),
    "sdiv": lambda x, y, b: _c_div(lanes.signed(x, b), lanes.signed(y, b)).view(np.uint64),
    "srem": lambda x, y, b: _c_rem(lanes.signed(x, b), lanes.signed(y, b)).view(np.uint64),
}  # fmt: skip
# Opcodes whose results never need more bits than their operands.
CLOSED = {"and", "or", "xor", "lshr", "udiv", "urem"}
REAL: dict[str, Binary] = {
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide,
}  # fmt: skip
COMPARE: dict[str, Binary] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _binary(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    rest = re.sub(r"^(?:(?:contract|disjoint|nsw|nuw) )+", "", rest)
    first, second = split_args(rest)
    type, text = typed(first)
    elem = vector_of(type)[1]
    a, b = slot(type, text), slot(type, second)
    if opcode in REAL:
        how = REAL[opcode]
        if elem == "bfloat":
            return _two(lambda x, y: lanes.round_bf16(how(x, y)), a, b)
        return _two(how, a, b)
    f, bits = INTEGER[opcode], lanes.bits_of(elem)
    if bits > 64:
        top = (1 << bits) - 1
        wide: Binary = lambda x, y: np.array([int(v) & top for v in f(x, y, bits)], object)  # noqa: E731
        return _two(wide, a, b)
    if opcode in CLOSED or bits == 64:
        return _two(lambda x, y: f(x, y, bits), a, b)
    mask = np.uint64((1 << bits) - 1)
    return _two(lambda x, y: f(x, y, bits) & mask, a, b)


# --- conversions --------------------------------------------------------------------------------------------------
def _conversion(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    first, _, target = rest.partition(" to ")
    type, text = typed(first)
    target = "ptr" if target.startswith("ptr") else target
    if text == "@smem":
        place: Callable[[Machine, Env], Lanes] = lambda m, env: m.place("shared")  # noqa: E731
        return place, True
    a = slot(type, text)
    if opcode in ("addrspacecast", "inttoptr", "ptrtoint"):
        return _one(lambda x: x, a)
    return _one(bitcast(type, target) if opcode == "bitcast" else _convert(opcode, type, target), a)


def _convert(opcode: str, type: str, target: str) -> Unary:
    if opcode in ("trunc", "zext"):
        return _resize(lanes.bits_of(type), lanes.bits_of(target))
    if opcode == "sext":
        source, bits = lanes.bits_of(type), lanes.bits_of(target)
        return lambda x: lanes.mask_int(lanes.signed(x, source).view(np.uint64), bits)
    if opcode in ("fptrunc", "fpext"):
        elem = vector_of(target)[1]
        return lanes.round_bf16 if elem == "bfloat" else lambda x: x.astype(lanes.FLOAT[elem])
    if opcode in ("sitofp", "uitofp"):
        bits = lanes.bits_of(type)
        whole: Unary = (lambda x: lanes.signed(x, bits)) if opcode == "sitofp" else (lambda x: x)
        if target == "bfloat":
            return lambda x: lanes.round_bf16(whole(x).astype(np.float64))
        return lambda x: whole(x).astype(lanes.FLOAT[target])
    bits = lanes.bits_of(target)
    return lambda x: lanes.mask_int(np.trunc(x).astype(np.int64).view(np.uint64), bits)


def _resize(source: int, target: int) -> Unary:
    if max(source, target) <= 64:
        return (lambda x: x) if target > source else (lambda x: lanes.mask_int(x, target))
    top = (1 << target) - 1

    def change(x: Lanes) -> Lanes:
        wide = np.array([int(v) & top for v in x], object)
        return wide if target > 64 else wide.astype(np.uint64)

    return change


def bitcast(a: str, b: str) -> Unary:
    (many_a, elem_a), (many_b, elem_b) = vector_of(a), vector_of(b)

    def raw_of(x: Lanes) -> Lanes:
        if not many_a:
            return lanes.to_raw(a, x)
        width = np.uint64(lanes.bits_of(elem_a))
        parts = [lanes.to_raw(elem_a, np.ascontiguousarray(x[:, i])) for i in range(many_a)]
        out = parts[0]
        for i, part in enumerate(parts[1:], 1):
            out = out | part << np.uint64(i) * width
        return out

    def value_of(raw: Lanes) -> Lanes:
        if not many_b:
            return lanes.from_raw(b, raw)
        width = lanes.bits_of(elem_b)
        parts = [lanes.mask_int(raw >> np.uint64(i * width), width) for i in range(many_b)]
        return np.stack([lanes.from_raw(elem_b, p) for p in parts], axis=1)

    return lambda x: value_of(raw_of(x))


# --- comparisons ----------------------------------------------------------------------------------------------------
def _icmp(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    how, _, rest = rest.partition(" ")
    first, second = split_args(rest)
    type, text = typed(first)
    a, b, bits = slot(type, text), slot(type, second), lanes.bits_of(type)
    compare = COMPARE[how if how in ("eq", "ne") else how[1:]]
    if how[0] == "s":
        signed = lanes.signed
        return _two(lambda x, y: compare(signed(x, bits), signed(y, bits)).astype(np.uint64), a, b)
    return _two(lambda x, y: compare(x, y).astype(np.uint64), a, b)


def _fcmp(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    how, _, rest = rest.partition(" ")
    first, second = split_args(rest)
    type, text = typed(first)
    a, b = slot(type, text), slot(type, second)

    def run(x: Lanes, y: Lanes) -> Lanes:
        nan = np.isnan(x) | np.isnan(y)
        if how in ("uno", "ord"):
            return (nan == (how == "uno")).astype(np.uint64)
        return np.where(nan, how[0] == "u", COMPARE[how[1:]](x, y)).astype(np.uint64)

    return _two(run, a, b)


def _select(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    c, a, b = (slot(*typed(x)) for x in split_args(rest))

    def run(env: Env) -> Lanes:
        x: Lanes = env[a]
        chosen: Lanes = env[c].astype(bool)
        return np.where(chosen if x.ndim == 1 else chosen[:, None], x, env[b])

    return run, False


def _fneg(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    a = slot(*typed(rest))
    return _one(np.negative, a)


def _freeze(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    return _one(lambda x: x, slot(*typed(rest)))  # there are no undefined numbers here


# --- addresses and tables -------------------------------------------------------------------------------------------
def _getelementptr(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    parts = split_args(rest)
    if len(parts) == 4:  # into a table
        table, index = typed(parts[1])[1], slot(*typed(parts[3]))

        def entry(env: Env) -> Value:
            return table, env[index]

        return entry, False
    type, offset = typed(parts[2])
    base, by, bits = slot("ptr", typed(parts[1])[1]), slot(type, offset), lanes.bits_of(type)
    return _two(lambda x, y: x + lanes.signed(y, bits).view(np.uint64), base, by)


def _load(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    parts = split_args(rest)
    place, size = slot("ptr", typed(parts[1])[1]), lanes.bits_of(parts[0]) // 8

    def run(m: Machine, env: Env) -> Lanes:
        if isinstance(env[place], tuple):
            name, at = env[place]
            return tables[name][np.where(m.on, at, 0).astype(np.int64)]
        return m.load("global", env[place], 1, size, m.on)[:, 0]

    return run, True


def _alloca(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    stack: Callable[[Machine, Env], Lanes] = lambda m, env: m.stack()  # noqa: E731
    return stack, True


def _store(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    (type, value), place = typed(split_args(rest)[0]), slot("ptr", typed(split_args(rest)[1])[1])
    source = slot(type, value)

    def run(m: Machine, env: Env) -> None:
        m.local[int(env[place][0])] = type, env[source]

    return run, True


# --- vectors and structs ----------------------------------------------------------------------------------------------
def _insertelement(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    parts = [typed(x) for x in split_args(rest)]
    vector, elem, index = slot(*parts[0]), slot(*parts[1]), int(parts[2][1])

    def run(into: Lanes, x: Lanes) -> Lanes:
        out = into.copy()
        out[:, index] = x
        return out

    return _two(run, vector, elem)


def _extractelement(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    vector, index = (typed(x) for x in split_args(rest))
    v, i = slot(*vector), int(index[1])
    return _one(lambda x: np.ascontiguousarray(x[:, i]), v)


def _shufflevector(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    first, second, mask = split_args(rest)
    a, b = (slot(*typed(x)) for x in (first, second))
    chosen = [int(i) for i in re.findall(r"i32 (\d+)", mask)]
    return _two(lambda x, y: np.concatenate([x, y], axis=1)[:, chosen], a, b)


def _extractvalue(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    struct, index = split_args(rest)
    s, i = slot("", typed(struct)[1]), int(index)

    def run(env: Env) -> Value:
        return env[s][i]

    return run, False


def _insertvalue(tables: Tables, opcode: str, rest: str, slot: Slots) -> Made:
    struct, elem, index = split_args(rest)
    s, e, i = slot("{}", typed(struct)[1]), slot(*typed(elem)), int(index)

    def run(env: Env) -> Value:
        return *env[s][:i], env[e]

    return run, False


MAKERS: dict[str, Callable[[Tables, str, str, Slots], Made]] = {
    **dict.fromkeys([*INTEGER, *REAL], _binary),
    **dict.fromkeys(
        ["bitcast", "trunc", "zext", "sext", "fptrunc", "fpext", "sitofp", "uitofp", "fptosi", "fptoui",
         "inttoptr", "ptrtoint", "addrspacecast"], _conversion,
    ),
    "icmp": _icmp, "fcmp": _fcmp, "select": _select, "fneg": _fneg, "freeze": _freeze, "getelementptr": _getelementptr,
    "load": _load, "alloca": _alloca, "store": _store, "insertelement": _insertelement,
    "extractelement": _extractelement, "shufflevector": _shufflevector, "extractvalue": _extractvalue,
    "insertvalue": _insertvalue,
}  # fmt: skip


# --- calls --------------------------------------------------------------------------------------------------------
def row(of: Primitive, slots: list[int], many: bool) -> Run:
    """Return the meaning of a primitive as a step's function. `many`: its result is a struct."""
    meaning = cast(Run, of.meaning)  # its parameters are the row's operands

    def single(x: Value) -> Value:
        return x if many or not isinstance(x, tuple) else x[0]

    def compute(env: Env) -> Value:
        return single(meaning(*[env[s] for s in slots]))

    def act(m: Machine, env: Env) -> Value:
        return single(meaning(m, *[env[s] for s in slots]))

    return act if of.uses_machine else compute
