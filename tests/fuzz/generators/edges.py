"""Random kernels at the edges: narrow floats, scaled dots, far offsets, empty grids and loops, overlapping arrays,
unaligned bases, tiles of one element, integers of every width."""

from __future__ import annotations

from random import Random

from tests.fuzz.case import Case
from tests.fuzz.generators import features
from tests.fuzz.generators.features import Features, Pick, Several
from tests.fuzz.generators.writer import TL, Writer

KINDS = (
    "copy",
    "fp8",
    "scaled",
    "far",
    "empty",
    "overlap",
    "one",
    "zero",
    "atomic",
    "integers",
    "casts",
    "halves",
)
TABLE: dict[str, Pick | Several] = {
    "kind": Pick(*KINDS, plain=0.05),
    "rows": Pick(4, 1, 2, 16, 32), "cols": Pick(16, 1, 32, 64, 128),
    "type": Pick("fp32", "fp16", "bf16", "fp64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", plain=0.1),
    "other_type": Pick("i32", "fp32", "fp16", "bf16", "fp64", "i8", "u8", "i16", "u16", "u32", "i64", "u64", plain=0.1),
    "stride": Pick(1, 2, 3, -1, plain=0.4), "offset": Pick(0, 1, 3, 16, plain=0.3), "ragged": Pick(0, 1, 5, plain=0.5),
    "loop": Pick(0, 1, 2, 3, plain=0.3), "way": Pick(*range(6), plain=0.1), "format": Pick(*range(6), plain=0.1),
    "ops": Several(Pick(*range(14), plain=0.05), Pick(0, 1, 2, plain=0.2), most=5, none=0.0),
    "grid": Pick(1, 2, 3, plain=0.4), "warps": Pick(4, 1, 2, 8, plain=0.3),
    "barrier": Pick(True, False, plain=0.0),
}  # fmt: skip
INTS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FAR = 2**33 + 16


def draw(random: Random) -> Features:
    return settle(features.draw(TABLE, random))


def settle(f: Features) -> Features:
    f = dict(f)
    if f["kind"] in ("atomic", "integers") and f["type"] not in INTS:
        f["type"] = "i32"
    if f["kind"] == "atomic" and f["type"] not in ("i32", "u32", "i64", "u64"):
        f["type"] = "i32"
    if f["kind"] == "overlap":
        f["grid"] = 1
    return f


def build(f: Features, seed: int) -> Case:
    return Edges(settle(f), seed).case()


class Edges:
    """Writes one kernel of a kind; the tile is `rows` x `cols`."""

    def __init__(self, f: Features, seed: int) -> None:
        self.f, self.seed, self.w = f, seed, Writer()
        self.m, self.n = f["rows"], f["cols"]
        self.size = self.m * self.n
        self.kind: str = f["type"]
        self.grid: tuple[int, ...] = (f["grid"],)
        self.hosts_only = False

    def case(self) -> Case:
        f = self.f
        self.line("pid = tl.program_id(0)")
        self.line(f"r = tl.arange(0, {self.m})[:, None]")
        self.line(f"c = tl.arange(0, {self.n})[None, :]")
        self.line(f"at = pid * {self.size} + r * {self.n} + c")
        getattr(self, f["kind"])()
        text = self.w.text(self.w.sections["body"])
        return self.w.case(
            "edges", self.seed, f, text, grid=self.grid, options={"num_warps": f["warps"]},
            hosts_only=self.hosts_only,
        )  # fmt: skip

    def line(self, text: str) -> None:
        self.w.line("body", text)

    def input(self, name: str, dtype: str = "", **how: object) -> str:
        """An array of a tile for each program; integers have any bits, floats are small integers."""
        kind = dtype or self.kind
        fill = "bits" if kind in INTS else "ints"
        return self.w.array(
            name, kind, self.size * self.f["grid"], **{"fill": fill, "low": -4, "high": 4, **how}
        )

    def output(self, dtype: str, name: str = "o_ptr", size: int = 0, **how: object) -> str:
        size = size or self.size * self.f["grid"]
        return self.w.array(name, dtype, size, **{"fill": "zeros", "output": True, **how})

    # --- memory -----------------------------------------------------------------------------------------------------
    def copy(self) -> None:
        """Unaligned bases, odd and negative strides, ragged ends, and a turned store."""
        f, n = self.f, self.size * self.f["grid"]
        step = f["stride"]
        self.input("x_ptr", offset=f["offset"])
        self.w.arrays[-1].size = n * abs(step)
        out = self.output(self.kind, offset=f["offset"] if f["way"] % 2 else 0)
        first = (n - 1) * -step if step < 0 else 0
        stride = self.w.scalar("step", step) if f["way"] > 2 else step
        mask = f", mask=at < {max(n - f['ragged'], 1)}"
        other = ", other=1" if f["way"] == 4 else ""
        if f["way"] > 2 and f["format"] % 2:  # numbers taken apart, and products, in 64 bits
            parts = self.w.scalar("parts", (2, 1, 3, 1000)[f["loop"]])
            ours = f["format"] > 1
            far = self.w.scalar("far", FAR) if f["loop"] > 1 and not ours else 0
            whole = "pid.to(tl.int64)" if ours else f"(at.to(tl.int64) + {far})"
            self.line(f"tile = {whole} // {parts} * {parts} + {whole} % {parts} - {far}")
            places = f"tile * {stride}"
            if ours:
                places = (
                    f"tile * ({self.size} * {stride}) + (r * {self.n} + c).to(tl.int64) * {stride}"
                )
        else:
            places = f"at * {stride}"
        self.line(f"x = tl.load(x_ptr + {first} + {places}{mask}{other})")
        if f["way"] in (1, 5):
            self.line(f"tl.store({out} + pid * {self.size} + c.T * {self.m} + r.T, x.T)")
        else:
            self.line(f"tl.store({out} + at, x{mask if f['way'] == 2 else ''})")

    def far(self) -> None:
        """Offsets of more than 32 bits that cancel, as 64-bit integers, arguments or factors of a program's number."""
        self.input("x_ptr", offset=self.f["offset"])
        out = self.output(self.kind)
        way = self.f["way"]
        far = self.w.scalar("far", FAR * (-1 if way % 2 else 1)) if way < 4 else str(FAR)
        x, o = {
            0: (f"x_ptr + {far} + (at - {far})", f"{out} + at"),
            1: (f"x_ptr + (at.to(tl.int64) * {far} - at.to(tl.int64) * ({far} - 1))", f"{out} + at"),
            2: (f"x_ptr + {far} - {far} + at", f"{out} - {far} + at + {far}"),
            3: (f"x_ptr + at + (pid - pid) * {far}", f"{out} + at"),
            4: ("x_ptr + at", f"({out} - {far}) + (at.to(tl.int64) + {far})"),
            5: (f"(x_ptr + at.to(tl.int64) * {far}) + at.to(tl.int64) * (1 - {far})", f"{out} + at"),
        }[way]  # fmt: skip
        if self.f["loop"]:
            self.line(f"p = x_ptr + at + {self.f['loop']} * {far}")
            self.line(f"for _ in range({self.f['loop']}):")
            self.line(f"    p -= {far}")
            x = "p"
        self.line(f"tl.store({o}, tl.load({x}))")

    def empty(self) -> None:
        """Grids without programs: nothing is run, nothing is written."""
        f = self.f
        self.input("x_ptr")
        out = self.output(self.kind)
        self.grid = {0: (0,), 1: (1, 0), 2: (2, 3, 0), 3: (0, 0, 0), 4: (0, 5), 5: (1, 1, 1)}[
            f["way"]
        ]
        self.line(f"tl.store({out} + at, tl.load(x_ptr + at))")

    def overlap(self) -> None:
        """One array under two names: a program loads its tile whole before it stores. On GPUs, where the warps of a
        program run on their own, barriers make that so; under one name, the compiler's."""
        f, way, n = self.f, self.f["way"], self.size
        shift = (0, 1, 5, 16)[f["way"] % 4]
        chunks = max(f["loop"], 1)
        self.w.array(
            "x_ptr",
            self.kind,
            n * chunks + 16,
            fill="bits" if self.kind in INTS else "ints",
            output=True,
        )
        other = "y_ptr"
        if f["barrier"] or way % 2:
            self.w.array(other, self.kind, n * chunks, same_as="x_ptr", offset=shift, output=True)
            self.hosts_only = not f["barrier"]
        else:
            other = f"x_ptr + {shift}"
        source, target = ("x_ptr", other) if way < 3 else (other, "x_ptr")
        value = ("x", "-x", "x + x", "x + 1")[f["format"] % 4]
        self.line(f"for i in range({chunks}):")
        self.line(f"    x = tl.load({source} + i * {n} + at)")
        if way == 5:
            self.line(f"    z = tl.load({target} + i * {n} + at)")
            self.barrier()
            self.line(f"    tl.store({source} + i * {n} + at, z)")
        self.barrier()
        self.line(f"    tl.store({target} + i * {n} + at, ({value}).to({TL[self.kind]}))")
        self.barrier()

    def barrier(self) -> None:
        if self.f["barrier"]:
            self.line("    tl.debug_barrier()")

    # --- tiles of one element, loops of no trips ----------------------------------------------------------------------
    def one(self) -> None:
        """Tiles with extents of one through reductions, scans, changes of shape, and scalars of them."""
        self.m, self.n, self.size = (1, 1, 1) if self.f["way"] < 4 else (1, self.n, self.n)
        self.w.sections["body"] = self.w.sections["body"][:1]
        self.line(f"r = tl.arange(0, {self.m})[:, None]")
        self.line(f"c = tl.arange(0, {self.n})[None, :]")
        self.line(f"at = pid * {self.size} + r * {self.n} + c")
        self.input("x_ptr")
        wide = "fp64" if self.kind == "fp64" else "fp32" if self.kind not in INTS else "i64"
        out = self.output(wide)
        self.line("x = tl.load(x_ptr + at)")
        texts = (
            "tl.sum(x, 0)[None, :]", "tl.cumsum(x, 1)", "tl.sort(x)", "tl.max(x, 0)[None, :]",
            "tl.trans(x).reshape(1, COLS)",
            "x + tl.sum(x)", "tl.flip(x, 1)", "tl.where(x > 0, x, tl.min(x))", "tl.gather(x, c * 0, 1)",
            "tl.ravel(x)[None, :]",
            "tl.argmax(x, 0)[None, :]", "x - tl.max(x, 1)[:, None]", "tl.join(x, x).split()[0]",
            "tl.broadcast_to(x, 1, COLS)",
        )  # fmt: skip
        for op, _ in self.f["ops"]:
            self.line(f"x = ({texts[op].replace('COLS', str(self.n))}).to({TL[self.kind]})")
        self.line(f"tl.store({out} + at, x.to({TL[wide]}))")

    def zero(self) -> None:
        """Loops that may not run, and products over no elements."""
        f, trips = self.f, self.f["loop"]
        t = self.w.scalar("T", trips) if f["way"] % 2 else str(trips)
        kind = self.kind if self.kind in ("fp32", "fp16", "bf16") else "fp32"
        self.m = self.n = 16
        for name in "ab":
            self.w.array(f"{name}_ptr", kind, 256 * max(trips, 1))
        out = self.output("fp32", size=256 * f["grid"])
        self.line("i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]")
        start = (
            "tl.zeros((16, 16), tl.float32)",
            "tl.full((16, 16), 2.0, tl.float32)",
            "(i + j).to(tl.float32)",
        )
        self.line(f"acc = {start[f['format'] % 3]}")
        self.line("row = tl.full((16,), -4.0, tl.float32)")
        head = (
            f"for k in range({t}):",
            f"for k in range({t}, 0, -1):",
            f"for k in range(5, 5 + {t}):",
        )
        self.line(head[f["way"] % 3])
        k = ("k", "(k - 1)", "(k - 5)")[f["way"] % 3]
        self.line(f"    a = tl.load(a_ptr + {k} * 256 + i * 16 + j)")
        self.line(f"    b = tl.load(b_ptr + {k} * 256 + i * 16 + j)")
        self.line('    acc = tl.dot(a, b, acc, input_precision="ieee")')
        if f["format"] > 2:
            self.line("    row = tl.maximum(row, tl.max(acc, 1))")
        self.line(f"tl.store({out} + pid * 256 + i * 16 + j, acc + row[:, None])")

    # --- numbers ----------------------------------------------------------------------------------------------------
    def fp8(self) -> None:
        """Every code of the narrow types to wider ones and back; numbers of all magnitudes rounded to them."""
        f = self.f
        narrow = ("fp8e4nv", "fp8e5")[f["way"] % 2]
        wide = ("fp32", "fp16", "bf16")[f["format"] % 3]
        if f["way"] < 4:
            self.input("x_ptr", narrow, fill="codes")
            out = self.output(wide)
            self.line("x = tl.load(x_ptr + at)")
            more = ("", " * 2", " + 1", " - 0.5")[f["loop"]]
            self.line(f"y = x.to({TL[wide]}){more}")
            self.line(f"tl.store({out} + at, y)")
        else:
            self.input("x_ptr", wide, fill="normal")
            out = self.output(narrow)
            scale = ("1", "16", "400", "0.001")[f["loop"]]
            if wide == "fp32":
                self.line(f"x = tl.load(x_ptr + at) * {scale}")
            else:
                self.line("x = tl.load(x_ptr + at)")
            self.line(f"tl.store({out} + at, x.to({TL[narrow]}))")

    def halves(self) -> None:
        """Every bit pattern of fp16 and bf16 through casts and exact operations."""
        f = self.f
        kind = ("fp16", "bf16")[f["way"] % 2]
        self.input("x_ptr", kind, fill="codes")
        out = self.output(("fp32", "fp16", "bf16", "fp64")[f["format"] % 4])
        to = TL[("fp32", "fp16", "bf16", "fp64")[f["format"] % 4]]
        value = (
            "x",
            "-x",
            "tl.abs(x)",
            "tl.where(x > 0, x, -x)",
            "x.to(tl.float32) * 2",
            "tl.floor(x.to(tl.float32))",
        )[f["way"]]
        self.line("x = tl.load(x_ptr + at)")
        self.line(f"tl.store({out} + at, ({value}).to({to}))")

    def casts(self) -> None:
        """Between any two types, of numbers that both have."""
        a, b = self.kind, self.f["other_type"]
        low = 0 if "u" in a[0] + b[0] else -8
        self.input("x_ptr", a, fill="bits" if a in INTS and b in INTS else "ints", low=low, high=7)
        out = self.output(b)
        self.line("x = tl.load(x_ptr + at)")
        self.line(f"tl.store({out} + at, x.to({TL[b]}))")

    def scaled(self) -> None:
        """Products of operands in microscaling formats; powers of two as scales."""
        f = self.f
        left, right = (
            ("e4m3", "e5m2", "e2m1", "bf16", "fp16", "e4m3")[(f["format"] + i * f["way"]) % 6]
            for i in (0, 1)
        )
        m, n, k = (32, 64)[f["loop"] % 2], (32, 16)[f["grid"] % 2], (64, 128)[f["warps"] % 2]
        if "fp16" in (left, right) and "bf16" in (left, right):
            right = left
        tiles = []
        for name, form, rows, inner in (("a", left, m, 1), ("b", right, n, 0)):
            size = rows * k // (2 if form == "e2m1" else 1)
            kind = {"e4m3": "fp8e4nv", "e5m2": "fp8e5", "e2m1": "u8"}.get(form, form)
            self.w.array(f"{name}_ptr", kind, size, fill="bits" if form == "e2m1" else "ints")
            depth = k // 2 if form == "e2m1" else k
            at = f"tl.arange(0, {rows})[:, None] * {depth} + tl.arange(0, {depth})[None, :]"
            self.line(f"{name} = tl.load({name}_ptr + {at})" + ("" if inner else ".T"))
            scale = "None"
            if f["ragged"] != (1 if inner else 5) or form == "e2m1":
                self.w.array(f"{name}_s_ptr", "u8", rows * k // 32, low=126, high=128)
                at = f"tl.arange(0, {rows})[:, None] * {k // 32} + tl.arange(0, {k // 32})[None, :]"
                scale = f"tl.load({name}_s_ptr + {at})"
            tiles.append((name, scale, form))
        out = self.output("fp32", size=m * n)
        (a, sa, fa), (b, sb, fb) = tiles
        where = f"tl.arange(0, {m})[:, None] * {n} + tl.arange(0, {n})[None, :]"
        self.line(f'acc = tl.dot_scaled({a}, {sa}, "{fa}", {b}, {sb}, "{fb}")')
        self.line(f"tl.store({out} + {where}, acc)")
        self.grid = (1,)

    def atomic(self) -> None:
        """Operations on shared elements whose result does not depend on the order."""
        f = self.f
        name = ("add", "max", "min", "and", "or", "xor")[f["way"]]
        self.input("x_ptr")
        out = self.output(self.kind, size=16, fill="bits")
        where = (
            "at % 16",
            "(at * 5) % 16",
            "at * 0 + 3",
            "tl.abs(tl.load(x_ptr + at).to(tl.int32) % 16)",
        )[f["format"] % 4]
        mask = "" if not f["ragged"] else f", mask=at % 7 != {f['ragged']}"
        self.line(f"tl.atomic_{name}({out} + ({where}), tl.load(x_ptr + at){mask})")

    def integers(self) -> None:
        """Arithmetic of integers of one width, which wraps."""
        t = TL[self.kind]
        bits = int(self.kind[1:])
        self.input("x_ptr")
        self.input("y_ptr")
        out = self.output(self.kind)
        self.line("x = tl.load(x_ptr + at)")
        self.line("y = tl.load(y_ptr + at)")
        texts = (
            "x + y", "x - y", "x * y", "x & y", "x | y", "x ^ y", f"x << (y & {bits - 1})", f"x >> (y & {bits - 1})",
            "x // (y | 1)" if self.kind[0] == "u" else "x // ((y & 15) | 1)",
            "x % (y | 1)" if self.kind[0] == "u" else "x % ((y & 15) | 1)",
            "~x", "tl.maximum(x, y)", "tl.minimum(x, y)", "tl.where(x > y, x, y + 1)",
        )  # fmt: skip
        for op, target in self.f["ops"]:
            self.line(f"{'xxy'[target]} = ({texts[op]}).to({t})")
        self.line(f"tl.store({out} + at, x ^ y)")
