"""Lists the matrix instructions: `mma` of a warp on registers, `wgmma` of four warps on shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from tessera.backends.nvidia.primitives.basics import float8_values
from tessera.backends.nvidia.primitives.lanes import mask_int, to_raw
from tessera.backends.nvidia.primitives.row import (
    Action,
    Lanes,
    Machine,
    Primitive,
    braces,
    family,
    letter,
    listed,
    struct,
)
from tessera.dtypes import float8e4nv, float8e5

__all__ = ["mma", "wgmma", "wgmma_wait"]

BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8,
}  # fmt: skip
SWIZZLES = {1: 128, 2: 64, 3: 32}


def numbers(kind: str, raw: np.ndarray) -> np.ndarray:
    """Return elements of a type as float64, from their bits."""
    if kind in ("e4m3", "e5m2"):
        return float8_values(float8e4nv if kind == "e4m3" else float8e5)[raw]
    if kind in ("s8", "u8"):
        return raw.astype(np.uint8).view(np.int8 if kind == "s8" else np.uint8).astype(np.float64)
    if kind == "f16":
        return raw.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind == "f64":
        return raw.view(np.float64)
    low = {"bf16": 16, "tf32": 0, "f32": 0}[kind]
    bits = raw.astype(np.uint32) << np.uint32(low)
    return (
        (bits & np.uint32(0xFFFFE000 if kind == "tf32" else 0xFFFFFFFF))
        .view(np.float32)
        .astype(float)
    )


# --- mma ----------------------------------------------------------------------------------------------------------
@cache
def _places(regs: int, bits: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays [lanes, elements]: row (or column) and K of each element in a lane's registers. `groups` is the
    number of groups of 8 rows."""
    per = max(32 // bits, 1)
    lane, i = np.arange(32)[:, None], np.arange(regs * per)[None, :]
    outer = lane // 4 + 8 * (i // per % groups)
    return outer, per * (lane % 4) + i % per + 4 * per * (i // per // groups)


def _operand(
    kind: str, type: str, regs: Sequence[np.ndarray], groups: int, depth: int
) -> np.ndarray:
    """Return [warps, rows, K] of the fragments that lanes hold."""
    bits = BITS[kind]
    raw = np.stack([to_raw(type, x) for x in regs], axis=1)
    if bits < 32:
        shifts = np.arange(0, 32, bits, dtype=np.uint64)
        raw = mask_int(raw[:, :, None] >> shifts, bits).reshape(len(raw), -1)
    # Values in a warp's tf32 registers have been rounded.
    values = numbers("f32" if kind == "tf32" else kind, raw).reshape(-1, 32, raw.shape[1])
    out = np.zeros((len(values), 8 * groups, depth))
    outer, k = _places(len(regs), bits, groups)
    out[:, outer, k] = values
    return out


@family
def mma(asm: str, acc: str, counts: tuple[int, int, int], reg: str) -> Primitive:
    """One matrix instruction: accumulators tied in and out, then the registers of A and of B.

    `counts`: registers of A, of B, of the accumulator; `reg` is the type of the operands' registers.
    """
    a, b, c = counts
    kind = letter(acc)
    operands = (*[acc] * c, *[reg] * (a + b))
    constraints = ",".join(
        [*[f"={kind}"] * c, *[str(i) for i in range(c)], *[letter(reg)] * (a + b)]
    )
    text = f"{asm} {braces(0, c)}, {listed(2 * c, a)}, {listed(2 * c + a, b)}, {braces(0, c)};"
    shape, *kinds = asm.split(".")[3], *asm.split(".")[-3:-1]
    m_, k_ = int(shape[1:].split("n")[0]), int(shape.split("k")[1])

    def meaning(m: Machine, *args: Lanes) -> tuple[Lanes, ...]:
        m.whole_warps("mma.sync")
        left = _operand(kinds[0], reg, args[c : c + a], m_ // 8, k_)
        right = _operand(kinds[1], reg, args[c + a :], 1, k_)
        return accumulate(
            args[:c], left @ right.transpose(0, 2, 1), acc == "i32" and kinds[0] == "f16"
        )

    return Primitive("mma", operands, struct(acc, c), text, constraints, True, meaning, True)


@cache
def _results(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return [registers, lanes]: rows and columns."""
    n, lane = np.arange(count)[:, None], np.arange(32)[None, :]
    return lane // 4 + 8 * (n % 4 // 2), n // 4 * 8 + 2 * (lane % 4) + n % 2


def accumulate(
    acc: Sequence[np.ndarray], partial: np.ndarray, half: bool
) -> tuple[np.ndarray, ...]:
    """Add [warps, rows, columns] to the accumulators of lanes; fp16 ones (`half`) are pairs. Register 4 j + i of a lane
    has row lane / 4 + 8 (i / 2) and column 8 j + 2 (lane % 4) + i % 2."""
    rows, columns = _results(len(acc) * (2 if half else 1))
    out = np.ascontiguousarray(partial[:, rows, columns].transpose(1, 0, 2)).reshape(len(rows), -1)
    if half:
        return tuple(_add_halves(x, out[2 * i], out[2 * i + 1]) for i, x in enumerate(acc))
    if acc[0].dtype == np.uint64:
        return tuple(mask_int(x + y.astype(np.int64).view(np.uint64), 32) for x, y in zip(acc, out))
    return tuple((x + y.astype(x.dtype)).astype(x.dtype) for x, y in zip(acc, out))


def _add_halves(reg: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    pair = reg.astype(np.uint32).view(np.float16).reshape(-1, 2)
    total = (pair + np.stack([low, high], 1).astype(np.float16)).astype(np.float16)
    return total.reshape(-1).view(np.uint32).astype(np.uint64)


# --- wgmma --------------------------------------------------------------------------------------------------------
@family
def wgmma(
    asm: str, n: int, count: int, starts: tuple[tuple[int, int, bool], ...], held: bool, fresh: bool, flags: str,
    commit: bool,
) -> Primitive:  # fmt: skip
    """Fence and all MMAs of one block of 64 rows and `n` columns; with `commit` also the end of their group.

    Operands: `count` accumulators (floats, or packed registers of other types; none if `fresh`, as the first MMA
    overwrites them), then A (`held`: four registers a step; else its descriptor), then the descriptor of B.
    `starts`: for each step what to add to the descriptors of (A, B); `flags`: the signs and transpositions of the
    instruction.
    """
    name, (d, a, b) = asm.format(n=n), asm.split(".")[-3:]
    type = "float" if d == "f32" else "i32"
    acc, given = listed(0, count), 0 if fresh else count
    first = count + given
    from_b = first + (4 * len(starts) if held else 1)
    lines = ["{ .reg .b64 da, db; wgmma.fence.sync.aligned;"]
    for i, (step_a, step_b, keeps) in enumerate(starts):
        lines.append(f"add.s64 db, ${from_b}, {step_b};")
        if not held:
            lines.append(f"add.s64 da, ${first}, {step_a};")
        source = listed(first + 4 * i, 4) if held else "da"
        lines.append(f"{name} {acc}, {source}, db, {int(keeps)}{flags};")
    lines.append("} wgmma.commit_group.sync.aligned;" if commit else "}")
    signs = [int(x) for x in flags.split(", ")[1:]]
    turned = signs[2:] if d not in ("s32",) else signs
    depth = 256 // BITS[a]

    def meaning(m: Machine, *args: Lanes) -> tuple[Lanes, ...]:
        old, rest = args[:given], args[given:]
        steps = [
            (rest[4 * i : 4 * i + 4] if held else rest[0] + np.uint64(step_a), rest[-1] + np.uint64(step_b), keeps)
            for i, (step_a, step_b, keeps) in enumerate(starts)
        ]  # fmt: skip
        how = (n, depth, a, b, bool(turned and not held and turned[0]), bool(turned and turned[-1]))
        return m.mmas.start(old, count, d, how, steps, commit)

    types = (
        *[type] * given, *["i32"] * (4 * len(starts) if held else 0), *["i64"] * (1 if held else 2),
    )  # fmt: skip
    return _tied("wgmma", " ".join(lines), types, type, count, given, meaning)


@family
def wgmma_wait(pending: int, count: int, type: str, kept: int) -> Primitive:
    """Wait for all groups but the `pending` latest (-1: for none). Accumulators are tied through, so that nothing reads
    them before; the `kept` registers of A stay alive."""
    text = f"wgmma.wait_group.sync.aligned {pending};" if pending >= 0 else ""

    def meaning(m: Machine, *args: Lanes) -> tuple[Lanes, ...]:
        m.whole_warps("wgmma.wait_group")
        return m.mmas.wait(pending, args[:count])

    return _tied(
        "wgmma_wait", text, (*[type] * count, *["i32"] * kept), type, count, count, meaning
    )


def _tied(
    name: str, text: str, types: tuple[str, ...], type: str, count: int, given: int, meaning: Action
) -> Primitive:
    constraints = [f"={'f' if type == 'float' else 'r'}"] * count
    constraints += [str(i) for i in range(given)]
    constraints += [letter(t) for t in types[given:]]
    result = "{ " + ", ".join([type] * count) + " }"
    return Primitive(name, types, result, text, ",".join(constraints), False, meaning, True)


def descriptor_places(descriptor: int, rows: int, depth: int, kind: str, trans: bool) -> np.ndarray:
    """Return [rows, depth] byte addresses of a descriptor's operand; `trans`: rows, not K, are contiguous."""
    size, width = BITS[kind] // 8, SWIZZLES[descriptor >> 62]
    start = (descriptor & 0x3FFF) << 4
    between, groups = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    r, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    if trans:
        inside = r * size % width
        at = start + r * size // width * between + k // 8 * groups + k % 8 * width + inside
    else:
        at = start + r // 8 * groups + r % 8 * width + k * size
    return at ^ ((at >> 7 & {128: 7, 64: 3, 32: 1}[width]) << 4)


def fragment_of_warps(kind: str, regs: Sequence[np.ndarray]) -> np.ndarray:
    """Return [warps, 16, K]: the rows of A that the four registers of each thread hold."""
    depth = 256 // BITS[kind]
    if BITS[kind] < 32:
        return _operand(kind, "i32", regs, 2, depth)
    values = numbers(kind, np.stack(regs, 1)).reshape(-1, 32, 4)
    out = np.zeros((len(values), 16, depth))
    outer, k = _places(4, 32, 2)
    out[:, outer, k] = values
    return out
