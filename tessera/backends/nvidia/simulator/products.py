"""What `wgmma` blocks of inline PTX compute, for the simulator: operands by descriptors of swizzled shared memory."""

# pyright: basic
# the text is our own: patterns match
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
from __future__ import annotations

import re
from functools import cache

import numpy as np

from tessera.backends.gpu.types import float8_value
from tessera.dtypes import float8e4nv, float8e5

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
WIDTH = {1: 128, 2: 64, 3: 32}


def numbers(kind: str, raw: np.ndarray) -> np.ndarray:
    """Elements as float64, from bytes (last axis: the bytes of one element)."""
    raw = np.ascontiguousarray(raw)
    if kind == "f16":
        return raw.view(np.float16)[..., 0].astype(np.float64)
    if kind == "bf16":
        return (
            (raw.view(np.uint16)[..., 0].astype(np.uint32) << 16)
            .view(np.float32)
            .astype(np.float64)
        )
    if kind == "tf32":
        return (raw.view(np.uint32)[..., 0] & 0xFFFFE000).view(np.float32).astype(np.float64)
    if kind in ("s8", "u8"):
        return raw.view(np.int8 if kind == "s8" else np.uint8)[..., 0].astype(np.float64)
    return _float8(kind)[raw[..., 0]]


@cache
def _float8(kind: str) -> np.ndarray:
    """Values of all codes."""
    type = float8e4nv if kind == "e4m3" else float8e5
    return np.array([float8_value(type, c) for c in range(256)])


def from_shared(
    shared: np.ndarray, origin: int, descriptor: int, rows: int, depth: int, kind: str, trans: bool
) -> np.ndarray:
    """The [rows, depth] operand that a descriptor names; `trans`: rows are contiguous instead of K."""
    size, width = BYTES[kind], WIDTH[descriptor >> 62]
    start = (descriptor & 0x3FFF) << 4
    between, groups = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    r, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    if trans:
        at = (
            start + r * size // width * between + k // 8 * groups + k % 8 * width + r * size % width
        )
    else:
        at = start + r // 8 * groups + r % 8 * width + k * size
    phases = {128: 7, 64: 3, 32: 1}[width]
    at = at ^ ((at >> 7 & phases) << 4)
    return numbers(kind, shared[(at - origin)[..., None] + np.arange(size)])


def from_registers(words: list[np.ndarray], first: int, kind: str) -> np.ndarray:
    """The [64, k] operand A that the four words of each thread of a warpgroup hold."""
    per = 4 // BYTES[kind]
    result = np.zeros((64, 8 * per))
    for thread in range(128):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for i, x in enumerate(words):
            raw = x[first + thread : first + thread + 1].astype(np.uint32).view(np.uint8)
            row = 16 * warp + g + 8 * (i % 2)
            column = per * t + 4 * per * (i // 2)
            result[row, column : column + per] = numbers(kind, raw.reshape(per, -1))
    return result


def products(
    sim, text: str, operand: dict, acc: list[np.ndarray], origin: int, on: np.ndarray
) -> list[np.ndarray]:
    """Run the block `text` on the accumulators `acc`, for all warpgroups that are there."""
    acc = [x.copy() for x in acc]
    for first in np.nonzero(on)[0][::128]:
        registers: dict[str, int] = {}
        for line in text.split(";"):
            line = re.sub(r"^\s*[{}]?\s*", "", line).strip()
            if line.startswith("add.s64"):
                name, source, constant = re.match(r"add\.s64 (\w+), \$(\d+), (\d+)", line).groups()
                registers[name] = int(operand[int(source)][first]) + int(constant)
            elif line.startswith("wgmma.mma_async"):
                _one(sim, line, operand, registers, acc, first, origin)
            elif line and not re.match(r"\.reg|wgmma\.(fence|commit_group)", line):
                raise NotImplementedError(line)
    return acc


def _one(sim, line: str, operand, registers, acc, first: int, origin: int) -> None:
    n, k = (int(x) for x in re.search(r"m64n(\d+)k(\d+)", line).groups())
    kinds = re.search(r"k\d+\.(\w+)\.(\w+)\.(\w+)", line).groups()
    rest = line[line.index("}") + 1 :].lstrip(", ")
    shared = sim.memory.shared[first // sim.stride]
    keeps, *flags = [int(x) for x in re.search(r"db, ([-\d, ]+)$", rest)[1].split(",")]
    if not keeps:
        for x in acc:
            x[first : first + 128] = 0
    transposes = flags[2:] if len(flags) > 2 else []
    if rest.startswith("{"):
        words = [operand[int(x)] for x in re.findall(r"\$(\d+)", rest[: rest.index("}")])]
        a = from_registers(words, first, kinds[1])
    else:
        a = from_shared(
            shared, origin, registers["da"], 64, k, kinds[1], bool(transposes and transposes[0])
        )
    b = from_shared(
        shared, origin, registers["db"], n, k, kinds[2], bool(transposes and transposes[-1])
    )
    product = a @ b.T
    for thread in range(128):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        at = first + thread
        for j in range(n // 8):
            for half in range(2):
                pair = product[16 * warp + g + 8 * half, 8 * j + 2 * t : 8 * j + 2 * t + 2]
                _add(acc, 4 * j + 2 * half, at, pair, kinds[0])


def _add(acc, i: int, thread: int, pair: np.ndarray, kind: str) -> None:
    if kind == "f16":
        both = acc[i // 2][thread : thread + 1].astype(np.uint32).view(np.float16) + pair.astype(
            np.float16
        )
        acc[i // 2][thread] = both.astype(np.float16).view(np.uint32)[0]
        return
    for k in range(2):
        x = acc[i + k]
        if x.dtype == np.uint64:
            x[thread] = np.uint64((int(x[thread]) + int(pair[k])) & 0xFFFFFFFF)
        else:
            x[thread] += pair[k]
