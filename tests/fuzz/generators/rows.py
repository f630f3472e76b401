"""Random row kernels: reductions, scans, sorts and changes of shape over any axis, with NaN, ties and both zeros."""

from __future__ import annotations

from math import prod
from random import Random

from tests.fuzz.case import Case
from tests.fuzz.generators import features
from tests.fuzz.generators.features import Features, Pick, Several
from tests.fuzz.generators.writer import EXACT, HEAD, TL, Inexact, Writer

REDUCTIONS = (
    "sum",
    "max",
    "min",
    "argmax",
    "argmin",
    "max_at",
    "min_at",
    "xor_sum",
    "reduce_or",
    "user",
    "pair",
)
SCANS = ("cumsum", "cumprod", "cummax", "recurrence", "place")
SHAPES = ("flip", "permute", "reshape", "join", "split", "broadcast", "ravel", "expand")
LOOKUPS = ("sort", "topk", "gather", "histogram", "where", "vector", "trip", "clamp", "convert")
MATH = {  # of whole numbers k from -2 to 2; eight times that and 8.25 is far from a whole number, so that floors agree
    "exp": "tl.exp(k)", "exp2": "tl.exp2(k)", "log": "tl.log(k + 3)", "log2": "tl.log2(k + 3)", "sin": "tl.sin(k)",
    "cos": "tl.cos(k)", "sqrt": "tl.sqrt(tl.abs(k))", "rsqrt": "tl.rsqrt(k + 3)", "erf": "tl.erf(k)",
    "sigmoid": "tl.sigmoid(k)", "square": "tl.extra.libdevice.pow(k, 2.0)",
    "cube": "tl.extra.libdevice.pow(k, 3.0) * 0.5", "power": "tl.extra.libdevice.pow(k + 3, 0.25)",
}  # fmt: skip
UNARY = ("neg", "abs", "floor", "ceil", *MATH)
FLOATS = ("fp32", "fp16", "bf16", "fp64")
INTS = ("i32", "i8", "u8", "i16", "u16", "u32", "i64", "u64")
TABLE: dict[str, Pick | Several] = {
    "shape": Pick(
        (16,), (1,), (64,), (256,), (1024,), (4, 16), (16, 4), (1, 32), (32, 1), (2, 128), (32, 32), (8, 64), (64, 64),
        (2, 4, 8), (4, 1, 16), (8, 8, 8), (1, 2, 32), (16, 4, 4), (2, 32, 16), (2, 2, 2, 8), plain=0.1,
    ),
    "type": Pick("fp32", *FLOATS[1:], *INTS, plain=0.25),
    "fill": Pick("ints", "special", "bits", plain=0.4),
    "ops": Several(
        Pick(*REDUCTIONS, *SCANS, *SHAPES, *LOOKUPS, *UNARY, plain=0), Pick(0, 1, 2, plain=0.3), Pick(False, True),
        Pick(False, True), most=4, none=0.0,
    ),
    "walk": Pick("none", "max", "sum", "twice", plain=0.7),
    "ragged": Pick(0, 1, 3, plain=0.6),
    "other": Pick(0, None, 1, "inf", plain=0.4),
    "grid": Pick(1, 2, 3, plain=0.5),
    "layout": Pick("plain", "last", "strided", "apart", plain=0.6),
    "offset": Pick(0, 1, 3, 16, plain=0.7),
    "warps": Pick(4, 1, 2, 8, plain=0.3),
    # In place of `shape`: tiles of many vectors, whose loops are not unrolled, and of many results over several warps.
    "large": Pick((), (1024,), (2048,), (4096,), (64, 128), (128, 64), (256, 16), (16, 256), plain=0.6),
    # A mask that holds below a number along one dimension or all: none of its elements, a part, or all of them.
    "mask": Pick("", "last", "first", "all", "chosen", plain=0.3),
    "below": Pick("part", "few", "most", "none", "less than none", "all", "more than all", plain=0.2),
    "stored": Pick("whole", "masked", plain=0.5),
}  # fmt: skip
COMBINE = [
    "@tessera.jit", "def most(a, b):", "    return tl.where(a > b, a, b)", "", "",
    "@tessera.jit", "def both(a, c, b, d):", "    return a + b, tl.maximum(c, d).to(c.dtype)", "", "",
    "@tessera.jit", "def last(a, i, b, j):",
    "    first = (a > b) | ((a == b) & (i > j)) | ((a != a) & ((b == b) | (i > j)))",
    "    return tl.where(first, a, b), tl.where(first, i, j)", "", "",
    "@tessera.jit", "def step(a, c, b, d):", "    return a * b, c * b + d", "", "",
]  # fmt: skip


def draw(random: Random) -> Features:
    f = features.draw(TABLE, random)
    return settle(f)


def settle(f: Features) -> Features:
    f = dict(f)
    if f["type"] in FLOATS and f["fill"] == "bits":
        f["fill"] = "special"
    if f["type"] in INTS and f["fill"] == "special":
        f["fill"] = "bits"
    if f["other"] == "inf" and f["type"] in INTS:
        f["other"] = 1
    if (f["ragged"] or f["mask"]) and f["other"] is None:
        f["other"] = 0
    if f["large"]:
        f["shape"] = f["large"]
    return f


def build(f: Features, seed: int) -> Case:
    f = settle(f)
    while True:
        for high in (4, 2, 1):
            try:
                return Rows(f, seed, high).case()
            except Inexact:
                continue
        f = {**f, "ops": f["ops"][:-1]} if f["ops"] else {**f, "walk": "none"}


class Rows:
    """Writes one kernel. The tile `x` goes through the operations; every result of another shape is stored."""

    def __init__(self, f: Features, seed: int, high: int) -> None:
        self.f, self.seed, self.high = f, seed, high
        self.w = Writer()
        self.kind: str = f["type"]
        self.is_float = self.kind in FLOATS
        self.shape: list[int] = list(f["shape"])
        self.bound = float(high)
        self.outs = 0
        self.mask = ""  # of a tile in the shape that was loaded

    def case(self) -> Case:
        f, w = self.f, self.w
        w.line("body", "pid = tl.program_id(0)")
        self.load()
        for number, (op, axis, reverse, use) in enumerate(f["ops"]):
            self.op(number, op, axis % len(self.shape), reverse, use)
        self.store("x", self.shape)
        text = w.text(w.sections["body"]).replace("\n".join(HEAD), "\n".join([*HEAD, *COMBINE]), 1)
        return w.case(
            "rows", self.seed, f, text, grid=(f["grid"],), options={"num_warps": f["warps"]}
        )

    def line(self, text: str) -> None:
        self.w.line("body", text)

    # --- memory -----------------------------------------------------------------------------------------------------
    def index(self, shape: list[int], strides: list[int] | None = None) -> str:
        """Offsets of the elements of a tile; `strides` in elements, row-major if not given."""
        if not shape:
            return "0"
        terms = []
        for i, extent in enumerate(shape):
            stride = strides[i] if strides else prod(shape[i + 1 :])
            view = "[" + ", ".join(":" if j == i else "None" for j in range(len(shape))) + "]"
            axis = f"tl.arange(0, {extent})" + (view if len(shape) > 1 else "")
            terms.append(axis if stride == 1 else f"{axis} * {stride}")
        return " + ".join(terms)

    def load(self) -> None:
        f, w = self.f, self.w
        size, shape = prod(self.shape), self.shape
        strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
        span = size
        if f["layout"] in ("last", "apart"):  # column-major
            strides = [prod(shape[:i]) for i in range(len(shape))]
        if f["layout"] in ("strided", "apart"):
            strides, span = [2 * s for s in strides], 2 * size
        chunks = 3 if f["walk"] != "none" else 1
        fill = f["fill"]
        low = -self.high if self.kind[0] != "u" else 0
        w.array(
            "x_ptr", self.kind, span * f["grid"] * chunks, fill=fill, low=15 if fill == "special" else low,
            high=self.high, offset=f["offset"],
        )  # fmt: skip
        if fill == "special":
            self.bound = 8
        self.line(f"at = {self.index(shape, strides)}")
        how = ""
        if f["ragged"]:
            total = span * f["grid"] * chunks - f["ragged"] * (1 if size > 1 else 0)
            how = f", mask=base + at < {total}, other={self.other()}"
        base = f"pid * {span * chunks}"
        if f["mask"]:
            how = self.masked(how)  # or `read` masks
        if f["walk"] == "none":
            self.line(f"base = {base}")
            self.line(f"x = {self.read(how)}")
            return
        self.walk(base, span, how)

    def masked(self, how: str) -> str:
        """How to load where indices are below numbers, as the features say, and where `how` says, too."""
        f, shape = self.f, self.shape
        dims = {"first": [0], "all": range(len(shape))}.get(f["mask"], [len(shape) - 1])
        parts: list[str] = []
        for d in dims:
            n = shape[d]
            below = {
                "part": n * 3 // 4 + 1, "few": 1, "most": n - 1, "none": 0, "less than none": -3, "all": n,
                "more than all": n + 5,
            }[f["below"]]  # fmt: skip
            name = self.w.scalar(f"n{d}", below)
            view = "[" + ", ".join(":" if j == d else "None" for j in range(len(shape))) + "]"
            parts.append(f"(tl.arange(0, {n}){view if len(shape) > 1 else ''} < {name} + pid)")
        self.line(f"inside = {' & '.join(parts)}")
        self.line(f"inside = tl.broadcast_to(inside, {', '.join(map(str, shape))})")
        self.mask = "inside" if f["stored"] == "masked" else ""
        if f["mask"] == "chosen":
            return how
        if not how:
            return f", mask=inside, other={self.other()}"
        return how.replace("mask=", "mask=inside & (").replace(", other", "), other")

    def other(self) -> str:
        return "float('inf')" if self.f["other"] == "inf" else str(self.f["other"])

    def read(self, how: str) -> str:
        """A chunk of the row: a load, or what is chosen of it by the mask."""
        load = f"tl.load(x_ptr + base + at{how})"
        if self.f["mask"] != "chosen":
            return load
        return f"tl.where(inside, {load}, {self.other()}).to({TL[self.kind]})"

    def walk(self, base: str, span: int, how: str) -> None:
        """The row in chunks: what a loop carries, and for "twice" a second loop that uses it."""
        f, t = self.f, TL[self.kind]
        joined = {
            "max": "tl.maximum(x, y)", "twice": "tl.maximum(x, y)", "sum": "x + y",
        }[f["walk"]]  # fmt: skip
        self.line(f"base = {base}")
        self.line(f"x = {self.read(how)}")
        self.line("for c in range(1, 3):")
        self.line(f"    base = {base} + c * {span}")
        self.line(f"    y = {self.read(how)}")
        self.line(f"    x = ({joined}).to({t})")
        if f["walk"] == "sum":
            self.bound *= 3
        if f["walk"] == "twice":
            size = prod(self.shape)
            out = self.out(3 * size)
            self.line("for c in range(3):")
            self.line(f"    base = {base} + c * {span}")
            self.line(f"    y = {self.read(how)}")
            self.line(
                f"    tl.store({out} + (pid * 3 + c) * {size} + {self.index(self.shape)}, ({self.wide('y - x')}))"
            )
        self.check()

    def wide(self, value: str) -> str:
        """The value in the type that results are stored in."""
        kind = ("fp64" if self.kind == "fp64" else "fp32") if self.is_float else "i64"
        return f"({value}).to({TL[kind]})"

    def out(self, size: int) -> str:
        kind = ("fp64" if self.kind == "fp64" else "fp32") if self.is_float else "i64"
        self.outs += 1
        return self.w.array(
            f"o{self.outs}_ptr", kind, size * self.f["grid"], fill="zeros", output=True
        )

    def store(self, name: str, shape: list[int], integer: bool = False) -> None:
        size = prod(shape)
        out = self.out(size)
        value = self.wide(name) if not integer or not self.is_float else f"{name}.to(tl.float32)"
        where = f", mask={self.mask}" if self.mask and shape == list(self.f["shape"]) else ""
        self.line(f"tl.store({out} + pid * {size} + {self.index(shape)}, {value}{where})")

    def check(self, bound: float | None = None) -> None:
        if self.is_float and (self.bound if bound is None else bound) > EXACT[self.kind]:
            raise Inexact

    # --- operations -------------------------------------------------------------------------------------------------
    def op(self, number: int, op: str, axis: int, reverse: bool, use: bool) -> None:
        if op in REDUCTIONS:
            self.reduction(f"r{number}", op, axis, reverse, use)
        elif op in SCANS:
            self.scan(op, axis, reverse)
        elif op in SHAPES:
            self.reshape(op, axis)
        elif op in UNARY:
            self.unary(op)
        else:
            self.lookup(number, op, axis, reverse)

    def reduction(self, r: str, op: str, axis: int, left: bool, use: bool) -> None:
        n, rest = self.shape[axis], self.shape[:axis] + self.shape[axis + 1 :]
        if (
            op in ("xor_sum", "reduce_or", "user", "pair")
            and self.is_float
            and op in ("xor_sum", "reduce_or")
        ):
            op = "max"
        if op == "user" and self.f["fill"] == "special":
            op = "min"  # a NaN's place in the order would show
        self.check(self.bound * n)
        integer = op.startswith("arg")
        if self.f["fill"] == "special" and (integer or op.endswith("_at")):
            # which of the elements is found where all are NaN is open
            view = (
                "[" + ", ".join(":" if j == axis else "None" for j in range(len(self.shape))) + "]"
            )
            at = f"tl.arange(0, {n})" + (view if len(self.shape) > 1 else "")
            self.line(f"x = tl.where(({at} == {n // 2}) & (x != x), 1, x).to({TL[self.kind]})")
        if op in ("max_at", "min_at"):
            self.line(f"{r}, {r}_at = tl.{op[:3]}(x, {axis}, return_indices=True)")
            self.store(f"{r}_at", rest, integer=True)
        elif integer:
            self.line(f"{r} = tl.{op}(x, {axis})")
        elif op == "user":
            self.line(f"{r} = tl.reduce(x, {axis}, most)")
        elif op == "pair":
            self.line(f"{r}, {r}_b = tl.reduce((x, x), {axis}, both)")
            self.store(f"{r}_b", rest)
        else:
            self.line(f"{r} = tl.{op}(x, {axis})")
        self.store(r, rest, integer)
        if use and rest and not integer:
            self.bound = self.bound + self.bound * (n if op in ("sum", "pair") else 1)
            self.check()
            self.line(f"x = (x - tl.expand_dims({r}, {axis})).to({TL[self.kind]})")

    def scan(self, op: str, axis: int, reverse: bool) -> None:
        n, t = self.shape[axis], TL[self.kind]
        special = self.f["fill"] == "special"
        if op == "cummax" and special:
            op = "cumsum"
        if op in ("cumprod", "recurrence") and self.is_float:
            self.line(f"x = tl.where(x > 0, 1, -1).to({t})")
            self.bound = 1
        how = f", {axis}, reverse={reverse}"
        if op == "cummax":
            self.line(f"x = tl.associative_scan(x, {axis}, most, reverse={reverse})")
            return
        if op == "place":
            view = ", ".join(":" if j == axis else "None" for j in range(len(self.shape)))
            self.line(f"x_at = tl.broadcast_to(tl.arange(0, {n})[{view}].to(tl.int64), x.shape)")
            self.line(f"x, x_at = tl.associative_scan((x, x_at), {axis}, last, reverse={reverse})")
            self.store("x_at", self.shape, integer=True)
            return
        self.check(self.bound * n)
        self.bound *= n if op == "cumsum" else 1
        if op == "recurrence":
            self.check(float(n))
            self.bound = n
            self.line(f"x_a, x = tl.associative_scan((x, x), {axis}, step, reverse={reverse})")
            self.store("x_a", self.shape)
            return
        self.line(f"x = tl.{op}(x{how}).to({t})")

    def reshape(self, op: str, axis: int) -> None:
        shape = self.shape
        if op == "flip":
            self.line(f"x = tl.flip(x, {axis})")
        elif op == "permute" and len(shape) > 1:
            order = [*range(axis, len(shape)), *range(axis)]
            self.line(f"x = tl.permute(x, {', '.join(map(str, order))})")
            self.shape = [shape[i] for i in order]
        elif op == "reshape" and prod(shape) > 1:
            first = min(2 ** (axis + 1), prod(shape))
            self.shape = [first, prod(shape) // first]
            self.line(f"x = tl.reshape(x, {first}, {prod(shape) // first})")
        elif op == "join" and prod(shape) <= 1024:
            self.line(
                f"x = tl.join(x, x * 0 + {axis})"
                if self.f["fill"] != "special"
                else "x = tl.join(x, x)"
            )
            self.shape = [*shape, 2]
            if len(self.shape) > 4:
                self.line(f"x = tl.reshape(x, {prod(shape)}, 2)")
                self.shape = [prod(shape), 2]
        elif op == "split" and shape[-1] >= 2:
            last = [*shape[:-1], shape[-1] // 2]
            self.line(f"x, x_odd = tl.reshape(x, {', '.join(map(str, last))}, 2).split()")
            self.shape = last
            self.store("x_odd", last)
        elif op == "ravel":
            self.line("x = tl.ravel(x)")
            self.shape = [prod(shape)]
        elif op == "expand" and len(shape) < 4:
            self.line(f"x = tl.expand_dims(x, {axis})")
            self.shape = [*shape[:axis], 1, *shape[axis:]]
        elif op == "broadcast" and 1 in shape and prod(shape) <= 512:
            self.shape = [4 if i == shape.index(1) else n for i, n in enumerate(shape)]
            self.line(f"x = tl.broadcast_to(x, {', '.join(map(str, self.shape))})")

    def unary(self, op: str) -> None:
        t, wide = TL[self.kind], TL["fp64" if self.kind == "fp64" else "fp32"]
        if op in MATH:
            low = "x" if self.kind[0] == "u" else "tl.maximum(x, -2)"
            self.line(f"k = tl.floor(tl.minimum({low}, 2).to({wide}))")
            self.line(f"x = tl.floor({MATH[op]} * 8 + 8.25).to({t})")
            self.bound = 68
        elif op == "neg":
            self.line(f"x = (-x).to({t})" if self.kind[0] != "u" else f"x = (0 - x).to({t})")
        elif op == "abs" or not self.is_float:
            self.line("x = tl.abs(x)")
        else:
            self.line(f"x = tl.{op}(x.to({wide}) * 0.5).to({t})")
        self.check()

    def lookup(self, number: int, op: str, axis: int, reverse: bool) -> None:
        shape, t, n = self.shape, TL[self.kind], self.shape[-1]
        if op == "sort" and n <= 64:
            self.line(f"x = tl.sort(x, descending={reverse})")
        elif op == "topk" and 4 <= n <= 64:
            self.line(f"x = tl.topk(x, {n // 2 if axis else 2}).to({t})")
            self.shape = [*shape[:-1], n // 2 if axis else 2]
        elif op == "gather":
            extent, size = shape[axis], prod(shape)
            name = self.w.array(f"g{number}_ptr", "i32", size, low=0, high=extent - 1)
            self.line(f"x = tl.gather(x, tl.load({name} + {self.index(shape)}), {axis})")
        elif op == "histogram" and len(shape) == 1 and shape[0] >= 2:
            self.line("h = tl.histogram((x > 0).to(tl.int32) + 2 * (x > 1).to(tl.int32), 4)")
            self.store("h", [4], integer=True)
        elif op == "where":
            self.line(
                "x = tl.where(x > 0, x, -x)"
                if self.kind[0] != "u"
                else "x = tl.where(x > 3, x, 3 - x)"
            )
            self.bound += 3
        elif op == "vector":
            name = self.w.array(f"v{number}_ptr", self.kind, shape[axis], low=0, high=2)
            view = "[" + ", ".join(":" if j == axis else "None" for j in range(len(shape))) + "]"
            v = f"tl.load({name} + tl.arange(0, {shape[axis]}))" + (view if len(shape) > 1 else "")
            self.line(f"x = x {'*' if reverse else '+'} {v}")
            self.bound = self.bound * 2 if reverse else self.bound + 2
        elif op == "trip":
            self.line("for _ in range(2):")
            self.line(
                f"    x = (x - tl.expand_dims(tl.max(x, {axis}), {axis})).to({t})"
                if len(shape) > 1
                else "    x = x + 1"
            )
            self.bound = 4 * self.bound + 2
        elif op == "clamp":
            self.line(f"x = tl.minimum(tl.maximum(x, 0), 2).to({t})")
        elif op == "convert" and self.is_float:
            self.line(f"x = x.to(tl.float16).to({t})")
            if self.bound > 2048:
                raise Inexact
        self.check()
