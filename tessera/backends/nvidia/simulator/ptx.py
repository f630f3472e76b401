"""What inline PTX does, for the SIMT simulator: memory, atomics, matrix moves and products, conversions."""

# pyright: basic
# the text is our own: patterns match
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.backends.gpu.types import float8_value
from tessera.backends.nvidia.primitives import PRIMITIVES
from tessera.backends.nvidia.simulator.products import products
from tessera.backends.nvidia.simulator.values import (
    FLOAT,
    PTX_BITS,
    SHARED,
    WINDOW,
    Memory,
    add_to,
    from_raw,
    mask_int,
    round_bf16,
    signed,
    to_raw,
)  # fmt: skip
from tessera.dtypes import float8e4nv, float8e5

# What the primitive table says of its inline instructions, by mnemonic
MATH = {
    row.text.split()[0]: row.meaning
    for row in PRIMITIVES.values()
    if row.meaning and row.constraints
}


def _toward_zero(type: str):
    def convert(x: np.ndarray) -> np.ndarray:
        if type == "bfloat":
            cut = (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
            return np.where(np.isnan(x), np.float32(np.nan), cut)
        near = x.astype(FLOAT[type])
        over = np.abs(near.astype(x.dtype)) > np.abs(x)
        return np.where(over, np.nextafter(near, FLOAT[type](0)), near)

    return convert


def _tf32(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


MATH["cvt.rna.tf32.f32"] = _tf32
for _ptx, _source, _target in (
    ("cvt.rz.f16.f32", "float", "half"), ("cvt.rz.bf16.f32", "float", "bfloat"),
    ("cvt.rz.f32.f64", "double", "float"), ("cvt.rz.f16.f64", "double", "half"),
):  # fmt: skip
    MATH[_ptx] = _toward_zero(_target)


def _float8_codes(type) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([float8_value(type, c) for c in range(128)])
    finite = np.isfinite(values)
    return values[finite], np.arange(128)[finite]


def _narrow8(type, x: np.ndarray) -> np.ndarray:
    """Nearest code, ties to even, saturating."""
    values, codes = _float8_codes(type)
    size = np.minimum(np.abs(x.astype(np.float64)), np.nanmax(values[np.isfinite(values)]))
    near = np.abs(size[:, None] - values[None, :])
    near = np.where((codes & 1)[None, :], np.nextafter(near, np.inf), near)
    best = codes[np.argmin(np.where(np.isnan(near), np.inf, near), axis=1)]
    best = np.where(np.isinf(x), codes[-1], best)
    code = np.where(np.isnan(x), 0x7F, best | np.where(np.signbit(x), 0x80, 0))
    return code.astype(np.uint64)


def _from8(type):
    def convert(pair: np.ndarray) -> np.ndarray:
        halves = []
        for i in range(2):
            codes = mask_int(pair >> np.uint64(8 * i), 8)
            x = np.array([float8_value(type, int(c)) for c in codes], np.float16)
            halves.append(to_raw("half", x))
        return halves[0] | halves[1] << np.uint64(16)

    return convert


for _name, _type in (("e4m3", float8e4nv), ("e5m2", float8e5)):
    MATH[f"cvt.rn.satfinite.{_name}x2.f32"] = lambda high, low, t=_type: (
        _narrow8(t, low) | _narrow8(t, high) << np.uint64(8)
    )
    MATH[f"cvt.rn.f16x2.{_name}x2"] = _from8(_type)


class Ptx:
    """Inline PTX, by mnemonic. Mixed into the simulator, which has `memory`, `threads`, `counts`, `written`."""

    memory: Memory
    threads: int
    in_block: int
    stride: int
    cluster: int
    held: bool
    stalled: bool
    value: Callable[..., Any]
    counts: dict
    written: dict
    mbarriers: Any
    tensor_maps: Any

    def asm(self, result: str, text: str, constraints: str, args, env, on):
        codes = [c for c in constraints.split(",") if not c.startswith("~")]
        outputs = [c for c in codes if c.startswith("=")]
        values = [self.value(t, a, env) for t, a in args]
        types = [t for t, _ in args]
        operand: dict[int, np.ndarray] = {}
        tied: list = [None] * len(outputs)
        for i, (code, x) in enumerate(zip(codes[len(outputs) :], values)):
            operand[len(outputs) + i] = x
            if code.isdigit():
                tied[int(code)] = x
        if not text or text.startswith(("{ .reg .b64 da, db; wgmma", "wgmma.")):
            groups = on[: len(on) // 128 * 128].reshape(-1, 128)
            assert groups.all(1).any()
            assert (groups.all(1) == groups.any(1)).all()
            assert not on[groups.size :].any()
            if tied[0] is None:  # the first product overwrites
                kind = np.float32 if "float" in result else np.uint64
                tied = [np.full(self.threads, -1).astype(kind) for _ in outputs]
            got = products(self, text, operand, tied, SHARED, on) if text.startswith("{") else tied
            return got[0] if len(got) == 1 else tuple(got)
        if text.startswith("{ .reg .b32 R; mapa.shared::cluster.u32 R, $0, $1; mbarrier.arrive"):
            return self.arrive_remotely(operand[0], operand[1], on)
        if text.startswith("{ .reg .pred P; mbarrier.try_wait"):
            return self.try_wait(operand[1], operand[2], on)
        if text.startswith("{ .reg .pred P; elect.sync"):
            warps = on.reshape(-1, 32)
            assert (warps.all(1) == warps.any(1)).all(), "an election with threads missing"
            return (on & (np.arange(self.threads) % 32 == 0)).astype(np.uint64)
        others = text.startswith(("{ .reg .pred p;", "cp.async.mbarrier"))
        if (
            others or "bar.arrive" in text or re.search("bar.sync [$1]", text)
        ):  # copies land at once, and threads walk in step
            return None
        found = re.match(r"(?:@\$(\d+) )?(\S+?);?(?: (.*?);?)?$", text)
        predicate, mnemonic, tail = found[1], found[2], found[3] or ""
        mask = on & operand[int(predicate)].astype(bool) if predicate else on
        self.counts[mnemonic] = self.counts.get(mnemonic, 0) + 1
        names = [int(n) for n in re.findall(r"\$(\d+)", tail)]
        out_types = re.findall(r"[\w]+", result) if result.startswith("{") else [result]
        for prefix, handler in HANDLERS:
            if mnemonic.startswith(prefix):
                got = handler(
                    self, mnemonic, tail, names, operand, types, tied, out_types, mask, len(outputs)
                )
                break
        else:
            inputs = [operand[n] for n in names if n in operand]
            got = [MATH[mnemonic](*inputs)]
        if not outputs:
            return None
        return got[0] if len(outputs) == 1 else tuple(got)

    def offset(self, tail: str) -> tuple[int, int]:
        found = re.search(r"\[\$(\d+)(?: \+ (-?\d+))?\]", tail)
        return int(found[1]), int(found[2] or 0)

    def access(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        shared, is_store = ".shared" in mnemonic, mnemonic.startswith("st")
        count = int(re.search(r"\.v(\d)", mnemonic)[1]) if re.search(r"\.v(\d)", mnemonic) else 1
        size = int(PTX_BITS.findall(mnemonic)[-1]) // 8
        at, constant = self.offset(tail)
        data = [n for n in names if n != at]
        got = [
            None
            if is_store
            else (t.copy() if t is not None else np.zeros(self.threads, FLOAT.get(o, np.uint64)))
            for t, o in zip(tied or [None] * count, out_types)
        ]
        key = ("st" if is_store else "ld", "shared" if shared else "global", count * size)
        self.counts[key] = self.counts.get(key, 0) + 1  # type: ignore[index]
        if is_store:
            self.written["shared" if shared else "global"] += int(mask.sum()) * count * size
        for t in np.nonzero(mask)[0]:
            address = int(operand[at][t]) + constant
            place = self.memory.place(address, count * size, shared).reshape(count, size)
            for k in range(count):
                if is_store:
                    type = types[data[k] - outputs]
                    raw = int(to_raw(type, operand[data[k]][t : t + 1])[0])
                    place[k] = np.frombuffer(raw.to_bytes(8, "little")[:size], np.uint8)
                else:
                    raw = int.from_bytes(place[k].tobytes(), "little")
                    got[k][t] = from_raw(out_types[k], np.array([raw], np.uint64))[0]
        return got

    def barrier(self, mnemonic, tail, *rest):
        threads = re.match(r"\d+, (\d+)", tail)
        wanted = int(threads[1]) if threads else self.in_block
        for present in rest[-2].reshape(self.cluster, self.stride):
            there = present[:wanted].all() or not present.any()
            assert there and not present[wanted:].any(), "barrier with threads missing"
        return []

    def cluster_barrier(self, *rest):
        """Threads of all blocks meet; until then those that are there are held."""
        missing = rest[-2].sum() < self.cluster * self.in_block
        self.held = self.stalled = bool(missing)
        return []

    def arrive_remotely(self, address, rank, on):
        """At the barrier of another block that has this address in its own shared memory."""
        there = (address - np.uint64(SHARED)) % np.uint64(WINDOW) + rank * np.uint64(WINDOW)
        operand = {0: there + np.uint64(SHARED)}
        return self.mbarrier("mbarrier.arrive", "", [0], operand, [], [], [], on, 0)

    # --- barriers that count bytes: [arrivals left, bytes left, phase, arrivals a phase] by address ---
    def mbarrier(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        at = names[0]
        for t in np.nonzero(mask)[0]:
            address = int(operand[at][t])
            if ".init" in mnemonic:
                count = int(tail.rsplit(", ", 1)[1])
                self.mbarriers[address] = [count, 0, 0, count]
            elif ".inval" in mnemonic:
                del self.mbarriers[address]
            else:
                state = self.mbarriers[address]
                if "expect_tx" in mnemonic:
                    state[1] += int(tail.rsplit(", ", 1)[1])
                state[0] -= 1
                assert state[0] >= 0, "too many arrivals"
                self.turn(state)
        return []

    @staticmethod
    def turn(state: list[int]) -> None:
        if state[0] == 0 and state[1] == 0:
            state[0], state[2] = state[3], state[2] ^ 1

    def try_wait(self, address, phase, on):
        done = np.zeros(self.threads, np.uint64)
        for t in np.nonzero(on)[0]:
            done[t] = self.mbarriers[int(address[t])][2] != int(phase[t])
        self.stalled = not done[on].all()
        return done

    def tensor_copy(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        load, reduction = (
            ".mbarrier" in mnemonic,
            re.search(r"\.(add|min|max|and|or|xor)\.", mnemonic),
        )
        for t in np.nonzero(mask)[0]:
            values = [int(operand[n][t]) for n in names]
            signed32 = [((v + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) for v in values]
            blocks = [int(t) // self.stride]
            if ".multicast" in mnemonic:
                members = values.pop()
                blocks = [rank for rank in range(self.cluster) if members >> rank & 1]
                del signed32[-1]
            if load:
                shared, number, *at, bar = values[0], values[1], *signed32[2:-1], values[-1]
            else:
                number, *at, shared = values[0], *signed32[1:-1], values[-1]
            m, own = self.tensor_maps[number], int(t) // self.stride
            for there in [(rank - own) * WINDOW for rank in blocks]:
                size = m.move(
                    self.memory,
                    shared + there,
                    tuple(reversed(at)),
                    load,
                    reduction and reduction[1],
                )
                if load:
                    self.mbarriers[bar + there][1] -= size
                    self.turn(self.mbarriers[bar + there])
        return []

    def atomic(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        at, constant = self.offset(tail)
        kind = re.search(r"\.(add|max|min|and|or|xor|exch|cas)\b", mnemonic)[1]
        ptx = re.search(r"\.([a-z]+)(\d+)$", mnemonic)
        size, shared = int(ptx[2]) // 8, ".shared" in mnemonic
        if vector := re.search(r"\.v(\d)\.", mnemonic):
            return self.add_vector(int(vector[1]), ptx[1], size, at, constant, names, operand, mask)
        values = [operand[n] for n in names if n in operand and n != at]
        vtypes = [types[n - outputs] for n in names if n in operand and n != at]
        predicate = names  # the predicate stands before the mnemonic, not in the tail
        old = tied[0].copy() if outputs else None
        for t in np.nonzero(mask)[0]:
            place = self.memory.place(int(operand[at][t]) + constant, size, shared)
            raw = int.from_bytes(place.tobytes(), "little")
            given = [int(to_raw(ty, v[t : t + 1])[0]) for ty, v in zip(vtypes, values)]
            new = self.combine(kind, ptx[1], size, raw, given)
            if old is not None:
                old[t] = from_raw(out_types[0], np.array([raw], np.uint64))[0]
            place[:] = np.frombuffer(new.to_bytes(8, "little")[:size], np.uint8)
        del predicate
        return [old]

    def add_vector(self, count, kind, size, at, constant, names, operand, mask):
        """Sums of `count` neighbours: floats, or 16-bit ones as their bits."""
        for t in np.nonzero(mask)[0]:
            address = int(operand[at][t]) + constant
            assert address % (count * size) == 0, "a vector that is not aligned"
            place = self.memory.place(address, count * size, False).reshape(count, size)
            for row, n in zip(place, [n for n in names if n != at]):
                raw = int.from_bytes(row.tobytes(), "little")
                value = operand[n][t : t + 1]
                given = int(to_raw("float", value)[0]) if size == 4 else int(value[0])
                new = self.combine("add", kind, size, raw, [given])
                row[:] = np.frombuffer(new.to_bytes(8, "little")[:size], np.uint8)
        return []

    @staticmethod
    def combine(kind: str, ptx: str, size: int, raw: int, given: list[int]) -> int:
        top = (1 << (8 * size)) - 1
        if kind == "cas":
            return given[1] if raw == given[0] else raw
        if kind == "exch":
            return given[0]
        if ptx in ("f", "bf"):
            t = "bfloat" if ptx == "bf" else {2: "half", 4: "float", 8: "double"}[size]
            x, y = (from_raw(t, np.array([v], np.uint64)) for v in (raw, given[0]))
            total = round_bf16(x + y) if ptx == "bf" else (x + y).astype(x.dtype)
            return int(to_raw(t, total)[0])
        if kind in ("max", "min"):
            order = (
                (lambda v: v - ((v >> (8 * size - 1)) << (8 * size)))
                if ptx == "s"
                else (lambda v: v)
            )
            return (max if kind == "max" else min)(raw, given[0], key=order)
        both = {
            "add": raw + given[0],
            "and": raw & given[0],
            "or": raw | given[0],
            "xor": raw ^ given[0],
        }
        return both[kind] & top

    def matrix_move(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        """ldmatrix and stmatrix: lane l addresses row l % 8 of matrix l / 8, and holds word l % 4 of row l / 4."""
        warps = mask.reshape(-1, 32)
        assert (warps.all(1) == warps.any(1)).all(), "lanes missing"
        at, constant = self.offset(tail)
        count = int(re.search(r"\.x(\d)", mnemonic)[1])
        trans, store = ".trans" in mnemonic, mnemonic.startswith("st")
        data = [n for n in names if n != at]
        got = [np.zeros(self.threads, np.uint64) for _ in range(count)]
        for first in np.nonzero(warps[:, 0])[0] * 32:
            for k in range(count):
                rows = [
                    self.memory.place(int(operand[at][first + 8 * k + r]) + constant, 16, True)
                    for r in range(8)
                ]
                for lane in range(32):
                    pairs = [(lane // 4, 2 * (lane % 4)), (lane // 4, 2 * (lane % 4) + 1)]
                    for half, (r, c) in enumerate(pairs):
                        r, c = (c, r) if trans else (r, c)
                        place = rows[r][2 * c : 2 * c + 2]
                        if store:
                            word = int(operand[data[k]][first + lane])
                            place[:] = np.frombuffer(
                                ((word >> 16 * half) & 0xFFFF).to_bytes(2, "little"), np.uint8
                            )
                        else:
                            raw = int.from_bytes(place.tobytes(), "little")
                            got[k][first + lane] |= np.uint64(raw << 16 * half)
        return got

    def async_copy(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        found = re.match(r"\[\$(\d+) \+ (\d+)\], \[\$(\d+) \+ (-?\d+)\], (\d+)(?:, \$(\d+))?", tail)
        to, to_at, source, source_at, size, part = (int(x) if x else -1 for x in found.groups())
        for t in np.nonzero(mask)[0]:
            place = self.memory.place(int(operand[to][t]) + to_at, size, True)
            want = size if part < 0 else int(operand[part][t])
            place[:] = 0
            if want:
                place[:want] = self.memory.place(int(operand[source][t]) + source_at, want, False)
        return []

    def mma(self, mnemonic, tail, names, operand, types, tied, out_types, mask, outputs):
        warps = mask.reshape(-1, 32)
        assert (warps.all(1) == warps.any(1)).all(), "lanes missing"
        shape = re.search(r"m(\d+)n(\d+)k(\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.", mnemonic)
        m, n, k = (int(x) for x in shape.groups()[:3])
        groups = [
            [int(x) for x in re.findall(r"\$(\d+)", g)] for g in re.findall(r"\{(.*?)\}", tail)
        ]
        sizes = {
            "f16": 16,
            "bf16": 16,
            "tf32": 32,
            "f64": 64,
            "s8": 8,
            "u8": 8,
            "e4m3": 8,
            "e5m2": 8,
        }
        a, b = (
            self.fragments(operand, groups[i], types, outputs, shape[4 + i], sizes) for i in (1, 2)
        )
        acc_types = [types[i] for i in range(len(groups[0]))]
        got = [x.copy() for x in tied]
        half = acc_types[0] == "i32" and shape[4] == "f16"
        for first in np.nonzero(warps[:, 0])[0] * 32:
            left, right = np.zeros((m, k)), np.zeros((k, n))
            per = max(32 // sizes[shape[5]], 1)
            for lane in range(32):
                g, t = lane // 4, lane % 4
                for i, x in enumerate(a):
                    row = g + 8 * ((i // per) % 2 if m == 16 else 0)
                    left[row, per * t + i % per + 4 * per * (i // per // (2 if m == 16 else 1))] = (
                        x[first + lane]
                    )
                for i, x in enumerate(b):
                    right[per * t + i % per + 4 * per * (i // per), g] = x[first + lane]
            product = left @ right
            for lane in range(32):
                g, t = lane // 4, lane % 4
                for i in range(len(groups[0]) * (2 if half else 1)):
                    value = product[g + 8 * (i // 2), 2 * t + i % 2]
                    add_to(got, i, int(first) + lane, value, half)
        return got

    def fragments(self, operand, group, types, outputs, kind, sizes):
        """Elements, in register order, of the words of one operand."""
        result = []
        for n in group:
            type, x = types[n - outputs], operand[n]
            if sizes[kind] >= 32:
                result.append(x)
                continue
            raw, bits = to_raw(type, x), sizes[kind]
            for i in range(32 // bits):
                part = mask_int(raw >> np.uint64(bits * i), bits)
                if kind in ("s8", "u8"):
                    result.append(signed(part, 8) if kind == "s8" else part)
                elif kind in ("e4m3", "e5m2"):
                    names = {"e4m3": float8e4nv, "e5m2": float8e5}
                    result.append(np.array([float8_value(names[kind], int(v)) for v in part]))
                else:
                    result.append(from_raw("half" if kind == "f16" else "bfloat", part))
        return result

    def nothing(self, *rest):
        return []


HANDLERS = [
    ("barrier.cluster", Ptx.cluster_barrier),
    ("ld.", Ptx.access), ("st.", Ptx.access), ("bar.sync", Ptx.barrier), ("atom", Ptx.atomic),
    ("red", Ptx.atomic),
    ("fence", Ptx.nothing), ("prefetch.tensormap", Ptx.nothing),
    ("mbarrier.", Ptx.mbarrier), ("setmaxnreg", Ptx.nothing), ("bar.warp", Ptx.nothing),
    ("cp.async.bulk.tensor", Ptx.tensor_copy), ("cp.reduce.async.bulk", Ptx.tensor_copy),
    ("cp.async.bulk", Ptx.nothing),
    ("ldmatrix", Ptx.matrix_move), ("stmatrix", Ptx.matrix_move), ("mma.sync", Ptx.mma),
    ("cp.async.commit", Ptx.nothing), ("cp.async.wait", Ptx.nothing), ("cp.async", Ptx.async_copy),
]  # fmt: skip
