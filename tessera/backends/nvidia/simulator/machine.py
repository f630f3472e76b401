"""Runs the LLVM IR that the SIMT lowering wrote, for all threads of a program at once, in NumPy: those of one block, or
of all blocks of a cluster.

Each value is an array with the threads as its first axis. Threads stand in blocks; the block that comes first in the
text and has threads runs next, so that threads which parted meet again where the text says. Barriers demand that all
threads are there; memory accesses outside of the given arrays raise IndexError. Inline PTX is understood by its
mnemonic; everything else is an error, so that nothing new goes unchecked.
"""

# pyright: basic
# the text is our own: patterns match
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.analysis.intervals import evaluate
from tessera.backends.nvidia.simulator.boxes import TensorMap
from tessera.backends.nvidia.simulator.ptx import Ptx
from tessera.backends.nvidia.simulator.values import (
    FLOAT,
    SHARED,
    WINDOW,
    Memory,
    bits_of,
    from_raw,
    fused,
    mask_int,
    round_bf16,
    signed,
    to_raw,
)  # fmt: skip
from tessera.errors import DeviceAssertionError

np.seterr(all="ignore")


def split_args(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def typed(text: str) -> tuple[str, str]:
    """`ptr addrspace(1) align 16 %x` → (type, value)."""
    text = re.sub(r"\balign \d+ |byval\(.*?\) |\"[\w.]+\" ", "", text)
    type, _, value = text.rpartition(" ")
    return ("ptr" if type.startswith("ptr") else type), value


def narrowed(type: str, values: np.ndarray) -> np.ndarray:
    """Arguments come with 64 bits; those of narrower integers have no others set."""
    bits = int(type[1:]) if re.fullmatch(r"i\d+", type) else 64
    return values & np.uint64(2**bits - 1) if bits < 64 else values


class Function:
    def __init__(self, text: str) -> None:
        lines = re.sub(r",? !dbg !\d+", "", text).splitlines()  # source lines mean nothing here
        head = lines[0]
        self.name = re.search(r"@([\w.]+)\(", head)[1]
        inside = head[
            head.index("(", head.index("@")) + 1 : re.search(r"\) (?:nounwind|\{)", head).start()
        ]
        self.params = [typed(p) for p in split_args(inside)]
        self.blocks: dict[str, list[str]] = {}
        block = "entry"
        for line in lines[1:-1]:
            if line.endswith(":"):
                block = line[:-1]
                self.blocks[block] = []
            else:
                self.blocks[block].append(line.strip())
        self.order = {name: i for i, name in enumerate(self.blocks)}


class Simulator(Ptx):
    """One program: `run(args)` with scalars and addresses from `Memory.add`. `threads` a block, of `cluster` blocks."""

    def __init__(self, ir: str, memory: Memory, threads: int, cluster: int = 1) -> None:
        self.functions = {}
        for found in re.finditer(r"^define .*?^\}", ir, re.M | re.S):
            f = Function(found[0])
            self.functions[f.name] = f
        self.texts: dict[str, str] = {}
        self.tables: dict[str, np.ndarray] = {}
        for name, values in re.findall(
            r"^(@[\w.]+) = .*? constant \[\d+ x i64\] \[(.*)\]", ir, re.M
        ):
            numbers = [int(v.split()[1]) & (2**64 - 1) for v in values.split(",")]
            self.tables[name] = np.array(numbers, np.uint64)
        for name, text in re.findall(
            r"^(@\w+) = .*? constant \[\d+ x i8\] c\"(.*)\\00\"", ir, re.M
        ):
            plain = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), text)
            self.texts[name] = plain.encode("latin-1").decode("utf-8")
        self.local: dict[int, list] = {}  # stack slots by address
        self.memory, self.in_block, self.cluster = memory, threads, cluster
        # Warpgroups stay whole: where several blocks run, some threads at the end of each are never there.
        self.stride = threads if cluster == 1 else -(-threads // 128) * 128
        self.threads = cluster * self.stride
        self.rank, self.index = np.divmod(np.arange(self.threads), self.stride)
        self.program = (0, 0, 0)
        self.grid = (1, 1, 1)
        self.counts: dict[str, int] = {}
        self.mbarriers: dict[int, list[int]] = {}
        self.tensor_maps: list = []  # objects whose number stands for a map's address
        self.stalled = self.held = False
        self.written = {"global": 0, "shared": 0}  # bytes

    def run(self, name: str, args: Sequence[np.ndarray], program=(0, 0, 0), grid=(1, 1, 1)) -> None:
        self.program, self.grid = program, grid
        self.call(name, list(args), self.index < self.in_block)

    def full(self, type: str, value) -> np.ndarray:
        if type in FLOAT:
            return np.full(self.threads, value, FLOAT[type])
        return np.full(self.threads, int(value) & (2**64 - 1), np.uint64)

    # --- control --------------------------------------------------------------------------------------
    def call(self, name: str, args: list[np.ndarray], active: np.ndarray):
        f = self.functions[name]
        env = {v: narrowed(type, a) for (type, v), a in zip(f.params, args, strict=True)}
        where = np.where(active, 0, -1)
        came = np.full(self.threads, -1)
        names = list(f.blocks)
        result = None
        waiting = np.zeros(self.threads, bool)  # in vain so far: others go first
        while (where >= 0).any():
            ready = where[(where >= 0) & ~waiting]
            assert ready.size, "all threads wait for barriers that nobody completes"
            here = ready.min()
            on = where == here
            self.stalled = self.held = False
            lines = f.blocks[names[here]]
            self.phis(f, lines, env, on, came)
            for line in lines:
                if " = phi " in line:
                    continue
                if line.startswith(("br ", "ret", "unreachable")):
                    came = np.where(on, here, came)
                    got = self.leave(f, line, env, on, where)
                    if got is not None:
                        result = got if result is None else self.merge(on, got, result)
                    break
                self.step(line, env, on)
                if self.held:  # comes again to the start of this piece of code
                    break
            waiting = waiting | on if self.stalled else np.zeros(self.threads, bool)
        return result

    def leave(self, f: Function, line: str, env, on, where):
        if line.startswith(("ret", "unreachable")):
            where[on] = -1
            if line in ("ret void", "unreachable"):
                return None
            type, value = typed(line[4:])
            return self.value(type, value, env)
        labels = [f.order[x] for x in re.findall(r"label %([\w.]+)", line)]
        if len(labels) == 1:
            where[on] = labels[0]
            return None
        condition = self.value("i1", re.match(r"br i1 ([^,]+),", line)[1], env).astype(bool)
        where[on] = np.where(condition, *labels)[on]
        return None

    def phis(self, f: Function, lines: list[str], env, on, came) -> None:
        new = {}
        for line in lines:
            if " = phi " not in line:
                break
            name, rest = line.split(" = phi ", 1)
            type, sources = (
                rest[: rest.index("[")].strip(),
                re.findall(r"\[ ([^,]+), %([\w.]+) \]", rest),
            )
            type = "ptr" if type.startswith("ptr") else type
            total: Any = None
            for value, block in sources:
                if value.startswith("%") and value not in env:
                    continue
                x = self.value(type, value, env)
                total = x.copy() if total is None else np.where(came == f.order[block], x, total)
            new[name] = total
        for name, x in new.items():
            self.define(env, name, x, on)

    def merge(self, on, new, old):
        if isinstance(new, tuple):
            return tuple(self.merge(on, a, b) for a, b in zip(new, old))
        shape = on if new.ndim == 1 else on[:, None]
        return np.where(shape, new, old) if new.dtype == old.dtype else new

    def define(self, env, name: str, x, on) -> None:
        old = env.get(name)
        env[name] = x if old is None or on.all() else self.merge(on, x, old)

    # --- values ---------------------------------------------------------------------------------------
    def value(self, type: str, text: str, env) -> Any:
        if text.startswith("%"):
            return env[text]
        vector = re.match(r"<(\d+) x (\w+)>", type)
        if text in ("poison", "zeroinitializer"):
            if vector:
                return np.stack([self.full(vector[2], 0)] * int(vector[1]), axis=1)
            return None
        if text.startswith("inttoptr"):
            return self.full("i64", int(re.search(r"i64 (\d+)", text)[1]))
        if text in ("true", "false", "null"):
            return self.full("i64", text == "true")
        if text.startswith("@"):
            return text
        if type in FLOAT:
            return self.full(type, self.float_value(type, text))
        return mask_int(self.full("i64", int(text)), bits_of(type))

    @staticmethod
    def float_value(type: str, text: str) -> float:
        if text.startswith("0xH"):
            return struct.unpack(">e", bytes.fromhex(text[3:]))[0]
        if text.startswith("0xR"):
            return struct.unpack(">f", bytes.fromhex(text[3:] + "0000"))[0]
        if text.startswith("0x"):
            return struct.unpack(">d", bytes.fromhex(text[2:]))[0]
        return float(text)

    # --- instructions -------------------------------------------------------------------------------------
    def step(self, line: str, env, on) -> None:
        name = ""
        if line.startswith("%"):
            name, line = line.split(" = ", 1)
        opcode, _, rest = line.partition(" ")
        self.counts[opcode] = self.counts.get(opcode, 0) + 1
        method = getattr(self, f"do_{opcode}", None)
        if opcode in INTEGER or opcode in REAL:
            x = self.binary(opcode, rest, env)
        elif opcode in CONVERSIONS:
            x = self.conversion(opcode, rest, env)
        elif method is not None:
            x = method(rest, env, on)
        else:
            raise NotImplementedError(line)
        if name:
            self.define(env, name, x, on)

    def binary(self, opcode: str, rest: str, env):
        rest = re.sub(r"^(contract|disjoint|nsw|nuw) ", "", rest)
        first, b = split_args(rest)
        type, a = typed(first)
        vector = re.match(r"<(\d+) x (\w+)>", type)
        elem = vector[2] if vector else type
        x, y = self.value(type, a, env), self.value(type, b, env)
        if opcode in REAL:
            r = REAL[opcode](x, y)
            return round_bf16(r) if elem == "bfloat" else r.astype(FLOAT[elem])
        bits = bits_of(elem)
        if bits > 64:
            return np.array(
                [int(v) & ((1 << bits) - 1) for v in INTEGER[opcode](x, y, bits)], object
            )
        return mask_int(INTEGER[opcode](x, y, bits), bits)

    def conversion(self, opcode: str, rest: str, env):
        first, _, target = rest.partition(" to ")
        type, a = typed(first)
        target = "ptr" if target.startswith("ptr") else target
        if a == "@smem":
            return (SHARED + self.rank * WINDOW).astype(np.uint64)
        if opcode == "addrspacecast":
            return self.value(type, a, env)
        x = self.value(type, a, env)
        if opcode == "bitcast":
            return self.bitcast(type, target, x)
        if opcode in ("inttoptr", "ptrtoint"):
            return x
        if opcode in ("trunc", "zext"):
            if bits_of(target) > 64 or bits_of(type) > 64:
                wide = np.array([int(v) & ((1 << bits_of(target)) - 1) for v in x], object)
                return wide if bits_of(target) > 64 else wide.astype(np.uint64)
            return mask_int(x, bits_of(target))
        if opcode == "sext":
            return mask_int(signed(x, bits_of(type)).view(np.uint64), bits_of(target))
        if opcode in ("fptrunc", "fpext"):
            elem = re.search(r"(\w+)>?$", target)[1]
            if elem == "bfloat":
                return round_bf16(x)
            return x.astype(FLOAT[elem])
        if opcode in ("sitofp", "uitofp"):
            whole = signed(x, bits_of(type)) if opcode == "sitofp" else x
            if target == "bfloat":
                return round_bf16(whole.astype(np.float64))
            return whole.astype(FLOAT[target])
        assert opcode in ("fptosi", "fptoui")
        return mask_int(np.trunc(x).astype(np.int64).view(np.uint64), bits_of(target))

    def bitcast(self, a: str, b: str, x):
        va, vb = re.match(r"<(\d+) x (\w+)>", a), re.match(r"<(\d+) x (\w+)>", b)
        if va:
            width = np.uint64(bits_of(va[2]))
            raw: Any = sum(
                to_raw(va[2], np.ascontiguousarray(x[:, i])) << np.uint64(i) * width
                for i in range(int(va[1]))
            )
        else:
            raw = to_raw(a, x)
        if vb:
            width = bits_of(vb[2])
            parts = [mask_int(raw >> np.uint64(i * width), width) for i in range(int(vb[1]))]
            return np.stack([from_raw(vb[2], p) for p in parts], axis=1)
        return from_raw(b, raw)

    def do_icmp(self, rest: str, env, on):
        how, _, rest = rest.partition(" ")
        first, b = split_args(rest)
        type, a = typed(first)
        x, y = self.value(type, a, env), self.value(type, b, env)
        if how[0] == "s":
            x, y = signed(x, bits_of(type)), signed(y, bits_of(type))
        kind = how if how in ("eq", "ne") else how[1:]
        return COMPARE[kind](x, y).astype(np.uint64)

    def do_fcmp(self, rest: str, env, on):
        how, _, rest = rest.partition(" ")
        first, b = split_args(rest)
        type, a = typed(first)
        x, y = self.value(type, a, env), self.value(type, b, env)
        nan = np.isnan(x) | np.isnan(y)
        if how in ("uno", "ord"):
            return (nan == (how == "uno")).astype(np.uint64)
        plain = COMPARE[how[1:]](x, y)
        return np.where(nan, how[0] == "u", plain).astype(np.uint64)

    def do_select(self, rest: str, env, on):
        c, a, b = split_args(rest)
        (type, a), (_, b) = typed(a), typed(b)
        return np.where(
            self.value("i1", typed(c)[1], env).astype(bool),
            self.value(type, a, env),
            self.value(type, b, env),
        )

    def do_fneg(self, rest: str, env, on):
        type, a = typed(rest)
        return -self.value(type, a, env)

    def do_getelementptr(self, rest: str, env, on):
        parts = split_args(rest)
        if len(parts) == 4:  # a table
            return (typed(parts[1])[1], self.value("i64", typed(parts[3])[1], env))
        assert parts[0] == "i8"
        type, offset = typed(parts[2])
        base = self.value("ptr", typed(parts[1])[1], env)
        return base + signed(self.value(type, offset, env), bits_of(type)).view(np.uint64)

    def do_load(self, rest: str, env, on):
        place = self.value("ptr", typed(split_args(rest)[1])[1], env)
        if isinstance(place, np.ndarray):  # of a parameter, the same for all threads
            word = self.memory.place(int(place[0]), 4, False).view(np.uint32)[0]
            return self.full("i64", word)
        name, at = place
        return self.tables[name][np.where(on, at, 0).astype(np.int64)]

    def do_alloca(self, rest: str, env, on):
        return self.full("i64", (len(self.local) + 1) << 48)

    def do_store(self, rest: str, env, on):
        (type, value), (_, place) = (typed(p) for p in split_args(rest))
        self.local[int(env[place][0])] = [type, self.value(type, value, env)]

    def vprintf(self, text: str, buffer: np.ndarray | None, on) -> np.ndarray:
        base = int(buffer[0]) if buffer is not None else 0
        slots = [self.local.pop(k) for k in sorted(self.local) if base and k >> 48 == base >> 48]
        form = self.texts[text].replace("ll", "").replace("%p", "%#x")
        for t in np.nonzero(on)[0]:
            values = []
            for (type, x), how in zip(slots, re.findall(r"%[0-9#]*([a-z])", form)):
                values.append(
                    int(signed(x[t : t + 1], bits_of(type))[0]) if how == "i" else x[t].item()
                )
            print(form % tuple(values), end="")
        return self.full("i32", 0)

    def do_insertelement(self, rest: str, env, on):
        vector, elem, index = (typed(p) for p in split_args(rest))
        x = self.value(*vector, env).copy()
        x[:, int(index[1])] = self.value(*elem, env)
        return x

    def do_shufflevector(self, rest: str, env, on):
        first, second, mask = split_args(rest)
        both = [self.value(*typed(x), env) for x in (first, second)]
        chosen = [int(i) for i in re.findall(r"i32 (\d+)", mask)]
        return np.concatenate(both, axis=1)[:, chosen]

    def do_extractelement(self, rest: str, env, on):
        vector, index = split_args(rest)
        return np.ascontiguousarray(self.value(*typed(vector), env)[:, int(typed(index)[1])])

    def do_extractvalue(self, rest: str, env, on):
        struct_, index = split_args(rest)
        return env[typed(struct_)[1]][int(index)]

    def do_insertvalue(self, rest: str, env, on):
        struct_, elem, index = split_args(rest)
        old = env.get(typed(struct_)[1], ())
        return (*old[: int(index)], self.value(*typed(elem), env))

    # --- calls ----------------------------------------------------------------------------------------------
    def do_call(self, rest: str, env, on):
        rest = re.sub(r" #\d+$", "", rest)
        found = re.match(r"(.*?) asm (?:sideeffect )?\"(.*?)\", \"(.*?)\"\((.*)\)$", rest)
        if found:
            args = [typed(a) for a in split_args(found[4])]
            return self.asm(found[1], found[2], found[3], args, env, on)
        found = re.match(r"(.*?) @([\w.]+)\((.*)\)$", rest)
        args = [typed(a) for a in split_args(found[3])]
        values = [self.value(t, a, env) for t, a in args]
        if found[2] in self.functions:
            return self.call(found[2], values, on)
        return self.intrinsic(found[1], found[2], [t for t, _ in args], values, on)

    def intrinsic(self, result: str, name: str, types, args, on):
        lanes = np.arange(self.threads)
        if name.startswith("llvm.nvvm.read.ptx.sreg."):
            what, axis = name.rsplit(".", 2)[1:]
            if what == "tid":
                return self.index.astype(np.uint64)
            if what == "cluster":
                return self.rank.astype(np.uint64)
            assert what in ("clusterid", "nclusterid") or self.cluster == 1 or axis != "x"
            source = self.program if what in ("ctaid", "clusterid") else self.grid
            return self.full("i64", source["xyz".index(axis)])
        if name.startswith("llvm.nvvm.shfl.sync"):
            warps = on.reshape(-1, 32)
            assert (warps.all(1) == warps.any(1)).all(), "shuffle with threads missing"
            self.counts["shfl"] = self.counts.get("shfl", 0) + 1
            lane = args[2].astype(np.int64)
            source = (lanes % 32) ^ lane if ".bfly." in name else lane & 31
            return args[1][lanes // 32 * 32 + source]
        if name.startswith("llvm.nvvm.ff2"):  # the first one is the high half
            pair = np.stack([args[1], args[0]], axis=1)
            return round_bf16(pair) if "bf16" in name else pair.astype(np.float16)
        if name == "vprintf":
            return self.vprintf(args[0], args[1], on)
        if name == "__assertfail":
            if on.any():
                raise DeviceAssertionError(
                    f"{self.texts[args[1]]}:{int(args[2][0])}: {self.texts[args[0]]}"
                )
            return None
        key = name.split(".")[1]
        if name.startswith("llvm.fptosi.sat") or name.startswith("llvm.fptoui.sat"):
            return self.saturate(int(name.split(".")[3][1:]), "fptosi" in name, args[0])
        if key in ("smin", "smax", "umin", "umax"):
            bits = bits_of(result)
            x, y = (signed(a, bits) if key[0] == "s" else a for a in args)
            return mask_int(
                (np.minimum if key.endswith("min") else np.maximum)(x, y)
                .astype(np.int64)
                .view(np.uint64)
                if key[0] == "s"
                else (np.minimum if key.endswith("min") else np.maximum)(x, y),
                bits,
            )
        if key == "fma":
            exact = args[0].astype(np.float64) * args[1].astype(np.float64) + args[2].astype(
                np.float64
            )
            if result == "double":
                exact = fused(*args)
            return round_bf16(exact) if result == "bfloat" else exact.astype(FLOAT[result])
        if key == "abs":
            return mask_int(
                np.abs(signed(args[0], bits_of(result))).view(np.uint64), bits_of(result)
            )
        if key == "fshl":
            s = args[2] & np.uint64(63)
            low = np.where(
                s == 0, np.uint64(0), args[1] >> np.where(s == 0, np.uint64(1), np.uint64(64) - s)
            )
            return (args[0] << s) | low
        if key in ON_BITS:
            text = [f"{int(v):0{bits_of(result)}b}" for v in args[0]]
            return np.array([ON_BITS[key](t) for t in text], np.uint64)
        return SIMPLE[key](*args).astype(args[0].dtype)

    def saturate(self, bits: int, is_signed: bool, x):
        low, high = (
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
        )
        numbers = [
            0 if np.isnan(v) else low if v <= low else high if v >= high else int(v)
            for v in x.astype(float)
        ]
        return np.array([n & ((1 << bits) - 1) for n in numbers], np.uint64)


INTEGER = {
    "add": lambda x, y, b: x + y, "sub": lambda x, y, b: x - y, "mul": lambda x, y, b: x * y,
    "and": lambda x, y, b: x & y, "or": lambda x, y, b: x | y, "xor": lambda x, y, b: x ^ y,
    "shl": lambda x, y, b: x << y if b <= 64 else [int(p) << int(q) for p, q in zip(x, y)],
    "lshr": lambda x, y, b: x >> y if b <= 64 else [int(p) >> int(q) for p, q in zip(x, y)],
    "ashr": lambda x, y, b: (signed(x, b) >> y.astype(np.int64)).view(np.uint64),
    "udiv": lambda x, y, b: x // np.where(y == 0, np.uint64(1), y),
    "urem": lambda x, y, b: x % np.where(y == 0, np.uint64(1), y),
    "sdiv": lambda x, y, b: _c_div(signed(x, b), signed(y, b)).view(np.uint64),
    "srem": lambda x, y, b: _c_rem(signed(x, b), signed(y, b)).view(np.uint64),
}  # fmt: skip


def _c_div(x, y):
    y = np.where(y == 0, 1, y)
    q = np.abs(x) // np.abs(y)
    return np.where((x < 0) != (y < 0), -q, q)


def _c_rem(x, y):
    return x - _c_div(x, y) * np.where(y == 0, 1, y)


REAL = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide}
CONVERSIONS = {
    "bitcast", "trunc", "zext", "sext", "fptrunc", "fpext", "sitofp", "uitofp", "fptosi", "fptoui", "inttoptr",
    "ptrtoint", "addrspacecast",
}  # fmt: skip
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
ON_BITS = {
    "ctpop": lambda t: t.count("1"), "ctlz": lambda t: len(t) - len(t.lstrip("0")),
    "bitreverse": lambda t: int(t[::-1], 2),
}  # fmt: skip
SIMPLE = {
    "minnum": np.fmin, "maxnum": np.fmax, "minimum": np.minimum, "maximum": np.maximum, "fabs": np.abs,
    "copysign": np.copysign, "trunc": np.trunc, "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "sqrt": np.sqrt,
    "round": lambda x: np.copysign(np.floor(np.abs(x).astype(np.longdouble) + 0.5), x),
}  # fmt: skip


def run_kernel(
    ir: str,
    name: str,
    args: Sequence,
    threads: int,
    shared: int,
    grid=(1, 1, 1),
    tensor_maps: Sequence = (),
    host_code: Sequence = (),
    cluster: int = 1,
    blocks: int = 0,
) -> Simulator:
    """Run all programs of a grid one after the other; array arguments are changed in place, numbers given as
    (type, value). `blocks`: how many to start of a kernel whose blocks run several programs each."""
    memory = Memory(shared, cluster)
    sim = Simulator(ir, memory, threads, cluster)
    values = [
        sim.full("i64", memory.add(a)) if isinstance(a, np.ndarray) else sim.full(*a) for a in args
    ]
    for elem, padding, box, swizzle, words in tensor_maps:
        values.append(sim.full("i64", len(sim.tensor_maps)))
        given = [int(v[0]) for v in values]
        known = evaluate(host_code, dict(enumerate(given)))
        words = [("const", known[n][0]) if kind == "code" else (kind, n) for kind, n in words]
        sim.tensor_maps.append(TensorMap(elem, padding, box, swizzle, words, given))
    if blocks:
        values.append(sim.full("i64", memory.add(np.array(grid, np.int32))))
        grid = (min(blocks, int(np.prod(grid))), 1, 1)
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                sim.run(name, values, (x, y, z), grid)
    return sim
