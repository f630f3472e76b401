"""Random loops of dots: operands, loops, jumps, accumulators and epilogues, over numbers whose sums are exact."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.generators import features
from tests.fuzz.generators.epilogues import ENDINGS, STORES, epilogue
from tests.fuzz.generators.features import Features, Pick, Several
from tests.fuzz.generators.operands import (
    ACCESSES,
    DESCRIPTORS,
    OPS,
    PLACES,
    RAWS,
    SOURCES,
    Axis,
    Operand,
)
from tests.fuzz.generators.tolerance import smooth, tolerance
from tests.fuzz.generators.writer import EXACT, TL, Inexact, Writer, indented

SIZES = Pick(16, 32, 64, 128, 256, weights=(6, 6, 3, 0.8, 0.2))
ROWS = Pick(16, 32, 64, 128, 256, 1, 2, 4, weights=(6, 6, 3, 0.8, 0.2, 0.5, 0.5, 1))
STEPS = Several(
    Pick(*OPS, plain=0.5), Pick(*PLACES, plain=0.4), Pick(*SOURCES, plain=0.0), most=2, none=0.4
)
RAW = Pick(*RAWS, plain=0.55)
ORDER = Pick("row", "col", plain=0.5)
TABLE: dict[str, Pick | Several] = {
    "m": ROWS, "n": SIZES, "k": SIZES, "d": Pick(16, 32, 64, weights=(4, 3, 1)),
    "steps": Pick(2, 1, 3, 5, 0, weights=(4, 2, 4, 2, 0.5)),
    "grid": Pick((1, 1), (2, 1), (1, 2), (3, 2), plain=0.5),
    "type": Pick("fp32", "fp16", "bf16", "tf32", "tf32x3", "fp64", "i8", "fp8e4nv", "fp8e5", plain=0.1),
    "dots": Pick("one", "two_b", "two_a", "same", "three", "chain", "chain_hoisted", plain=0.4),
    "loop": Pick("for", "runtime", "while", "from1", "kstep", "nested", "static", "range", "tiles", plain=0.3),
    "jump": Pick("none", "break", "continue", "return", "data", plain=0.75),
    "access": Pick(*ACCESSES, plain=0.35),
    "a_steps": STEPS, "b_steps": STEPS, "second": Pick("bare", "same"),
    "a_raw": RAW, "b_raw": RAW, "v_raw": RAW, "a_order": ORDER, "b_order": ORDER, "v_order": ORDER, "v_steps": STEPS,
    "add": Pick("plus", "arg", "minus", "scaled", "rescale", "rescale_row", "reinit", "fresh", "max", plain=0.3),
    "link": Pick("clamp", "positive", "causal", "rowmax", "online"),  # and "exp", of OVERLAPPING
    "acc": Pick("wide", "fp16", plain=0.8), "data": Pick("exact", "normal", plain=0.5),
    "endings": Several(Pick(*ENDINGS), most=2, none=0.5),
    "out": Pick("same", "fp16", "bf16", "fp32", plain=0.5),
    "store": Pick(*STORES, plain=0.5),
    "mask": Pick("none", "k", "m", "n", "all", "wrap", plain=0.5),
    "other": Pick(None, 0, 1, plain=0.3),
    "work": Pick("wide", "same", plain=0.6),
    "warps": Pick(4, 1, 2, 8, plain=0.3), "stages": Pick(2, 3, 1, 4, 5, 6, plain=0.2),
    "pad": Pick(0, 16, 8, 3, plain=0.6), "offset": Pick(0, 16, 1, 4, plain=0.75),
    "strides": Pick("literal", "args", plain=0.6),
    "maps": Pick(True, False),  # whether pointers may become tensor maps; drawn for OVERLAPPING alone
    "inside": Pick("none", "if", "while", "for"),  # what stands around each sum in the loop; drawn for LOOPS alone
    "seen": Pick("nothing", "number", "tile"),  # what a program reads of what it has stored; drawn for LOOPS alone
}  # fmt: skip
LIMIT = 2**22  # multiply-adds of a kernel: the interpreter and the simulator should be quick


# What a quarter of the kernels has: tiles for MMAs of warpgroups, in loops that overlap with themselves.
WARPGROUPS: dict[str, Pick] = {
    "m": Pick(64, 128, plain=0.7), "n": Pick(64, 32, 128, plain=0.6), "k": Pick(64, 32, plain=0.5),
    "d": Pick(64, 32, plain=0.7), "type": Pick("fp16", "bf16", "fp8e5", "i8", plain=0.6),
    "dots": Pick("chain", "one", "two_b", "three", "chain_hoisted", plain=0.4), "steps": Pick(3, 5, 2, 1, 0, plain=0.5),
    "add": Pick("arg", "plus", "rescale_row", "scaled", plain=0.4), "warps": Pick(4, 8, plain=0.5),
    "stages": Pick(3, 2, 4, 5, 1, plain=0.3), "grid": Pick((1, 1), (2, 1), plain=0.8),
    "a_raw": Pick("same"), "b_raw": Pick("same"), "v_raw": Pick("same"), "acc": Pick("wide"),
    "loop": Pick("for", "runtime", "while", "range", "tiles", plain=0.5), "pad": Pick(0), "offset": Pick(0),
    "mask": Pick("none", "k", "m", "all", plain=0.6), "other": Pick(0, None, plain=0.5),
    "work": Pick("same", "wide", plain=0.6),
}  # fmt: skip

# What nearly a third has: loops whose copies run ahead and whose MMAs run on or late, and their neighbours: sums that
# others look at, operands that are widened or computed, exponentials between two dots, scales, gates, few iterations.
OVERLAPPING: dict[str, Pick] = WARPGROUPS | {
    "m": Pick(64, 128, plain=0.8), "n": Pick(64, 128, 32, plain=0.7), "k": Pick(64, 128, plain=0.8),
    "d": Pick(64, 128, plain=0.8), "type": Pick("fp16", "bf16", "fp8e5", plain=0.6),
    "work": Pick("same", "wide", plain=0.8),
    "dots": Pick("chain", "one", "two_b", "chain_hoisted", "three", "same", weights=(5, 6, 5, 2, 2, 1)),
    "add": Pick("arg", "plus", "rescale_row", "scaled", "scattered", "max", weights=(10, 5, 2, 2, 2, 1)),
    "data": Pick("exact", "normal", plain=0.8), "warps": Pick(4, 8, 2, 1, weights=(14, 3, 2, 1)),
    "other": Pick(0, None, plain=0.8),
    "link": Pick("exp", "online", "causal", "clamp", "rowmax"),
    "b_raw": Pick("same", "i8", "fp8e5", "int4", "nibble", "fp32", plain=0.6),
    "v_raw": Pick("same", "i8", "fp8e5", plain=0.8),
    "stages": Pick(3, 4, 2, 5, weights=(6, 7, 3, 4)), "steps": Pick(5, 3, 2, 1, 0, weights=(7, 6, 4, 2, 1)),
    "loop": Pick("for", "runtime", "range", "tiles", "while", plain=0.4), "jump": Pick("none", "break", plain=0.95),
    "access": Pick("index", "advance", "host", "desc", "found", plain=0.4), "mask": Pick("none", "k", "all", plain=0.7),
    "maps": Pick(True, False, plain=0.5), "offset": Pick(0), "pad": Pick(0, 16, plain=0.8),
}  # fmt: skip

# What all loops of the family `loops` have: types, warps and stages that OVERLAPPING leaves out, up to four products,
# branches and loops around sums, all kinds of loops and edges.
LOOPS: dict[str, Pick] = OVERLAPPING | {
    "n": Pick(64, 128, 32, 16, 256, weights=(8, 3, 3, 1, 0.5)), "k": Pick(64, 128, 32, weights=(8, 2, 1)),
    "type": Pick("fp16", "bf16", "fp8e5", "i8", "fp8e4nv", "fp32", "tf32", weights=(8, 4, 3, 2, 2, 1, 1)),
    "dots": Pick("chain", "one", "two_b", "chain_hoisted", "three", "same", "four", weights=(10, 11, 9, 4, 4, 2, 4)),
    "warps": Pick(4, 8, 2, 1, weights=(10, 6, 1, 1)), "stages": Pick(3, 4, 2, 5, 1, weights=(6, 6, 4, 4, 1)),
    "loop": Pick("for", "runtime", "range", "tiles", "while", "nested", "from1", "kstep", plain=0.3),
    "jump": Pick("none", "break", "continue", "data", "return", plain=0.85),
    "mask": Pick("none", "k", "all", "m", "n", "wrap", plain=0.55),
    "inside": Pick("none", "if", "while", "for", plain=0.75), "maps": Pick(True, False, plain=0.6),
    "seen": Pick("nothing", "number", "tile", plain=0.8),
}  # fmt: skip


BARE: Features = {"a_steps": (), "b_steps": (), "v_steps": ()}


def draw(random: Random) -> Features:
    def any_kind() -> Features:
        f = features.draw(
            {k: p for k, p in TABLE.items() if k not in ("maps", "inside", "seen")}, random
        )
        if random.random() < 0.25:
            f |= {name: pick.draw(random) for name, pick in WARPGROUPS.items()} | BARE
        return f

    f = quick(any_kind)
    f = f if random.random() < 0.7 else quick(lambda: f | overlapping(random))
    return f | edges(random)


def edges(random: Random) -> Features:
    """Whether the axes end within a tile, whether operands are triangles, and results. Drawn last: the rest stays as it
    was."""
    drawn: Features = {"short": random.random() < 0.5, "triangle": random.random() < 0.1}
    return drawn | {"lower": random.random() < 0.1}


def draw_overlapping(random: Random) -> Features:
    """Features of a loop that overlaps with itself."""
    names = [name for name in TABLE if name not in LOOPS]
    rest = features.draw({name: TABLE[name] for name in names}, random)
    rest |= {} if random.random() < 0.15 else BARE
    f = quick(lambda: rest | {name: pick.draw(random) for name, pick in LOOPS.items()})
    if f["seen"] == "number" and f["access"] in DESCRIPTORS:
        f["store"] = "desc"  # a store through pointers would keep each role in its place
    return f | edges(random)


def overlapping(random: Random) -> Features:
    return {name: pick.draw(random) for name, pick in OVERLAPPING.items()} | BARE


def quick(drawn: Callable[[], Features]) -> Features:
    """Features of a kernel that does not take long."""
    while True:
        f = settle(drawn())
        work = f["m"] * f["n"] * f["k"] * max(f["steps"], 1) * f["grid"][0] * f["grid"][1]
        if work <= LIMIT:
            return f


def settle(f: Features) -> Features:
    """The nearest features that have a meaning together."""
    plain = dict.fromkeys(("short", "triangle", "lower"), False)
    f = {"maps": True, "inside": "none", "seen": "nothing", **plain, **f}
    chain = f["dots"].startswith("chain")
    if f["type"] in ("i8", "fp8e4nv", "fp8e5"):
        f["k"] = max(f["k"], 32)
        if chain:
            f["n"] = max(f["n"], 32)
    if f["loop"] == "static" and f["jump"] in ("break", "continue", "data"):
        f["jump"] = "none"
    if f["loop"] == "tiles" and f["jump"] == "return":
        f["jump"] = "none"
    if f["loop"] == "nested" and f["jump"] in ("break", "data"):
        f["jump"] = "continue"
    if f["jump"] == "continue" and f["access"] == "advance":
        f["access"] = "index"
    if f["access"] in DESCRIPTORS:
        f["m"] = max(f["m"], 16)  # parts of a few rows would be empty
        f["mask"] = f["mask"] if f["mask"] != "wrap" else "none"
        for side in "abv":
            if f[f"{side}_raw"] == "nibble" or (
                f[f"{side}_raw"] == "int4" and min(f["k"], f["n"]) < 32
            ):
                f[f"{side}_raw"] = "same"
    if f["access"] == "block":
        for side in "abv":
            f[f"{side}_raw"] = "int4" if f[f"{side}_raw"] == "nibble" else f[f"{side}_raw"]
    if f["seen"] == "tile":
        f["grid"] = (1, 1)  # other programs would see it, too
    if f["seen"] == "number" and f["loop"] not in ("for", "runtime", "range", "tiles"):
        f["loop"] = "for"
    if f["acc"] == "fp16" and f["type"] != "fp16":
        f["acc"] = "wide"
    if f["dots"] == "chain_hoisted":  # computed in front of the loop, where there is no step
        f["a_steps"] = tuple(
            s for s in f["a_steps"] if s[0] != "step" and s[1] not in ("scalar", "tile")
        )
    if f["data"] == "normal":
        smooth(f)
    if chain and f["add"] in ("fresh", "max", "reinit", "scaled", "scattered"):
        f["add"] = "plus"
    if f["store"] == "atomic" and f["out"] not in ("same", "fp32"):
        f["out"] = "same"
    return f


def build(f: Features, seed: int, writer: type[Dots] | None = None) -> Case:
    """The kernel of these features. Numbers get smaller, and steps fewer, until every sum is exact."""
    f = settle(f)
    while True:
        for high in (3, 2, 1):
            try:
                return (writer or Dots)(f, seed, high).case()
            except Inexact:
                continue
        longest = max(("a_steps", "b_steps", "v_steps"), key=lambda s: len(f[s]))
        if f[longest]:
            f = {**f, longest: f[longest][:-1]}
        elif f["acc"] == "fp16":
            f = {**f, "acc": "wide"}
        elif f["add"] != "plus":
            f = {**f, "add": "plus"}
        elif f["a_raw"] != "same" or f["b_raw"] != "same":
            f = {**f, "a_raw": "same", "b_raw": "same", "v_raw": "same"}
        else:
            f = {**f, "steps": max(f["steps"] - 1, 1), "k": max(f["k"] // 2, 32), "endings": ()}


def text_of(x: Operand | str) -> str:
    return x.name if isinstance(x, Operand) else x


class Dots:
    """Writes one kernel; `high` is the greatest magnitude of what lies in the arrays."""

    family = "dots"

    def __init__(self, f: Features, seed: int, high: int) -> None:
        self.f, self.seed, self.high = f, seed, high
        self.w = Writer()
        self.kind: str = f["type"]
        self.acc_kind = {"fp64": "fp64", "i8": "i32"}.get(self.kind, "fp32")
        if f["acc"] == "fp16":
            self.acc_kind = "fp16"
        self.sums: list[tuple[str, float]] = []  # accumulators, and what bounds them
        self.chain = f["dots"].startswith("chain")

    def axes(self) -> dict[str, Axis]:
        f, chain = self.f, self.chain
        ragged = {"all": "mnk", "wrap": "m"}.get(
            f["mask"], f["mask"] if f["mask"] != "none" else ""
        )
        less = {x: (3 if x in ragged else 0) for x in "mnk"}
        if chain and less["k"] and f["short"]:
            less["k"] += f["k"] // 2
        if "int4" in (f["a_raw"], f["b_raw"]) or "nibble" in (f["a_raw"], f["b_raw"]):
            less["k"] += 1 if less["k"] else 0
        # Where rows wrap around, no mask guards the columns of V that are not there.
        short = bool(chain and f["short"] and ragged and f["mask"] != "wrap")
        gm, gn = (f["grid"][0], 1 if chain else f["grid"][1])
        m, n, k, t = f["m"], f["n"], f["k"], f["steps"]
        turns = 1 if chain else t
        keys = t if chain else gn
        self.gm, self.gn = gm, gn
        key = Axis(
            n, max(n * keys - less["n"], 1), "nn", f"i * {n}", True, n * max(keys, 1), "n" in ragged
        )
        inner = Axis(
            k,
            max(k * turns - less["k"], 1),
            "kk",
            f"i * {k}",
            True,
            k * max(turns, 1),
            "k" in ragged,
        )
        if chain:
            inner = Axis(k, k - less["k"], "ka", "0", False, k, "k" in ragged)
        else:
            key = Axis(n, n * gn - less["n"], "rn", f"pn * {n}", False, n * gn, "n" in ragged)
        return {
            "m": Axis(m, max(m * gm - less["m"], 1), "rm", f"pm * {m}", False, m * gm, "m" in ragged),
            "n": key, "k": inner, "d": Axis(f["d"], f["d"] // 2 if short else f["d"], "rd", "0", False, f["d"], short),
        }  # fmt: skip

    # --- the kernel -------------------------------------------------------------------------------------------------
    def case(self) -> Case:
        f, w = self.f, self.w
        self.ax = self.axes()
        self.heads()
        if f["seen"] == "number":
            self.numbered()
        if self.chain:
            self.linked()
        else:
            self.plain()
        if f["steps"] == 0:
            self.sums = [(name, 0) for name, _ in self.sums]
        self.finish()
        text, twin = w.twins(self.body())
        bound = tolerance(f)
        grid = (2,) if f["loop"] == "tiles" else (self.gm, self.gn)
        maps = {} if f["maps"] else {"pointer_maps": False}
        return w.case(
            self.family, self.seed, f, text, grid=grid,
            options={"num_warps": f["warps"], "num_stages": f["stages"], **maps},
            bound=bound, twin=twin if bound else "",
        )  # fmt: skip

    def finish(self) -> None:
        epilogue(self)

    def heads(self) -> None:
        f, w = self.f, self.w
        self.t = (
            w.scalar("T", f["steps"])
            if f["loop"] in ("runtime", "while", "from1", "nested")
            else str(f["steps"])
        )
        for name, extent in (("ma", f["m"]), ("na", f["n"]), ("ka", f["k"]), ("rd", f["d"])):
            w.line("setup", f"{name} = tl.arange(0, {extent})")
        w.line("setup", f"ka2 = tl.arange(0, {f['k'] // 2})")
        w.line("setup", f"na2 = tl.arange(0, {f['n'] // 2})")
        w.line("place", f"rm = pm * {f['m']} + ma")
        w.line("place", f"rn = pn * {f['n']} + na")
        if f["mask"] == "wrap":
            w.line("place", f"rm_ = rm % {self.ax['m'].total}")
            self.ax["m"].index = "rm_"
            if not self.chain:
                w.line("place", f"rn_ = rn % {self.ax['n'].total}")
                self.ax["n"].index = "rn_"
        if not self.chain:
            w.line("index", f"kk = i * {f['k']} + ka")
            w.line("index", f"k2 = i * {f['k'] // 2} + ka2")
        else:
            w.line("index", f"nn = i * {f['n']} + na")
            w.line("index", f"n2 = i * {f['n'] // 2} + na2")

    def numbered(self) -> None:
        """Keep the number of the step, or of the tile, in memory from one to the next."""
        f, w = self.f, self.w
        tiles = f["loop"] == "tiles"
        cells = 2 if tiles else self.gm * self.gn
        name = w.array("cell_ptr", "i32", 4 * cells, low=0, high=0, output=True)
        mine = "tl.program_id(0)" if tiles else f"pm * {self.gn} + pn"
        self.counted = f"tl.load({name} + ({mine}) * 4)"
        step = "tl.num_programs(0)" if tiles else "1"
        at = "post" if tiles else "end"
        if f["access"] in DESCRIPTORS:
            w.line(
                "setup", f"cells = tl.make_tensor_descriptor({name}, [{cells}, 4], [4, 1], [1, 4])"
            )
            w.line(
                at, f"cells.store([{mine}, 0], tl.full((1, 4), {step}, tl.int32) + {self.counted})"
            )
            return
        w.line(at, f"next_number = {self.counted} + {step}")
        for text in (
            "tl.debug_barrier()",
            f"tl.store({name} + ({mine}) * 4, next_number)",
            "tl.debug_barrier()",
        ):
            w.line(at, text)

    def operand(self, name: str, axes: str, inner: int, at: str = "body") -> Operand:
        pair = (self.ax[axes[0]], self.ax[axes[1]])
        made = Operand(self.w, self.f, name, pair, inner, self.kind, self.high)
        made.emit(at)
        return made

    def dot(self, x: str, y: str, more: str = "") -> str:
        precision = {"fp32": "ieee", "tf32": "tf32", "tf32x3": "tf32x3"}.get(self.kind)
        how = f', input_precision="{precision}"' if precision else ""
        if self.acc_kind == "fp16":
            how += ", out_dtype=tl.float16"
        return f"tl.dot({x}, {y}{more}{how})"

    def limit(self, bound: float) -> None:
        if self.f["data"] == "normal":
            return
        most = EXACT[self.acc_kind]
        if self.kind.startswith("fp8"):
            most = 2**13  # tensor cores keep some 14 bits of the sums of fp8 products
        if bound > most:
            raise Inexact

    def plain(self) -> None:
        f = self.f
        a = self.operand("a", "mk", 1)
        b = self.operand("b", "kn", 0)
        pairs = {"one": [(a, b)]}.get(f["dots"], [(a, b)])
        if f["dots"] in ("two_b", "three"):
            pairs += [(a, self.operand("b2", "kn", 0))]
        if f["dots"] == "three":
            pairs += [(a, self.operand("b3", "kn", 0))]
        if f["dots"] == "two_a":
            pairs += [(self.operand("a2", "mk", 1), b)]
        if f["dots"] == "four":
            left = self.operand("a2", "mk", 1)
            pairs += [
                (a, self.operand("b2", "kn", 0)),
                (left, b),
                (left, self.operand("b3", "kn", 0)),
            ]
        if f["dots"] == "same":
            pairs += [(self.operand("a2", "mk", 1), self.operand("b2", "kn", 0))]
        bounds = [x.bound * y.bound * f["k"] for x, y in pairs]
        if f["dots"] == "same":
            self.accumulate("acc", "m", "n", pairs, sum(bounds))
            return
        for number, (pair, bound) in enumerate(zip(pairs, bounds)):
            self.accumulate(f"acc{number}" if number else "acc", "m", "n", [pair], bound)

    def accumulate(
        self, acc: str, rows: str, cols: str, pairs: list[tuple[Any, Any]], bound: float
    ) -> None:
        f, w, how = self.f, self.w, self.f["add"]
        zeros = f"tl.zeros(({self.ax[rows].extent}, {self.ax[cols].extent}), {TL[self.acc_kind]})"
        total = bound * f["steps"]
        if how == "fresh":
            w.line("pre", f"{acc} = tl.zeros(({self.ax[rows].extent},), {TL[self.acc_kind]})")
            total *= self.ax[cols].extent
        else:
            w.line("pre", f"{acc} = {zeros}")
        if how == "rescale":
            w.line("body", f"{acc} = {acc} * {'2' if f['steps'] <= 3 else '«-1¦1»'}")
            total *= 2 ** min(f["steps"], 3)
        elif how == "rescale_row":
            name = w.array(f"{acc}_s_ptr", self.acc_kind, self.ax["m"].span, low=-1, high=1)
            w.line("body", f"{acc} *= tl.load({name} + rm)[:, None]")
        elif how == "reinit":
            w.line("body", f"if i % 2 == 1:\n    {acc} = {zeros}")
        scale = ""
        if how == "scaled":
            name = w.array(
                f"{acc}_z_ptr",
                "i32" if self.kind == "i8" else "fp16",
                self.ax["n"].span,
                low=-2,
                high=2,
            )
            scale, total = f" * tl.load({name} + rn).to({TL[self.acc_kind]})[None, :]", total * 2
        elif how == "scattered":  # a scale for each column and step
            turns = max(f["steps"], 1)
            name = w.array(f"{acc}_z_ptr", "fp16", self.ax["n"].span * turns, low=-2, high=2)
            at, total = f"{name} + rn * {turns} + i", total * 2
            scale = f" * tl.load({at}).to({TL[self.acc_kind]})[None, :]"
        for x, y in pairs:
            product = self.dot(text_of(x), text_of(y))
            w.line("body", self.inside(acc, self.joined(acc, how, product, scale, x, y)))
        total *= 2 if f["inside"] == "for" else 1
        self.limit(total)
        self.sums.append((acc, total))

    def inside(self, acc: str, statement: str) -> str:
        """A sum's statement in a branch, in a loop of its own, or behind a loop that turns the sum's sign."""
        kind = self.f["inside"]
        if kind == "if":
            return f"if i % 3 != 1:\n    {statement}"
        if kind == "for":
            twice = "J" if "J" in self.w.scalars else self.w.scalar("J", 2)
            return f"for _ in range({twice}):\n    {statement}"
        if kind == "while":
            turn = f"while n_{acc} < i % 3:\n    {acc} = {acc} * «-1¦1»\n    n_{acc} += 1"
            return f"n_{acc} = 0\n{turn}\n{statement}"
        return statement

    def joined(self, acc: str, how: str, product: str, scale: str, x: Any, y: Any) -> str:
        """The statement that adds one product."""
        if how in ("arg", "rescale"):
            return f"{acc} = {self.dot(text_of(x), text_of(y), f', {acc}')}"
        if how == "minus":
            return f"{acc} «-¦+»= {product}"
        if how == "fresh":
            return f"{acc} += tl.sum({product}, 1)"
        if how == "max":
            return f"{acc} = tl.maximum({acc}, {product})"
        return f"{acc} += {product}{scale}"

    def linked(self) -> None:
        """Two dots, the second of what the first gives: the shape of attention."""
        f, w = self.f, self.w
        hoisted = f["dots"] == "chain_hoisted"
        a = self.operand("a", "mk", 1, "pre" if hoisted and f["access"] != "advance" else "body")
        b = self.operand("b", "kn", 0)
        self.limit(a.bound * b.bound * f["k"])
        w.line("body", f"p = {self.dot('a', 'b')}")
        zero, one = ("0", "1") if self.kind == "i8" else ("0.0", "1.0")
        clamp = "«tl.minimum(tl.maximum(p, -2), 2)¦p»"
        link, acc = f["link"], TL[self.acc_kind]
        # Choices between numbers and maxima are fp32: what the loop carries must stay as narrow as it begins.
        narrow = f".to({acc})" if self.acc_kind == "fp16" else ""
        lines = {
            "clamp": [f"p = {clamp}"], "positive": [f"p = tl.where(p > 0, {one}, {zero})"],
            "causal": [f"p = tl.where(rm[:, None] >= nn[None, :], {clamp}, {zero})"],
            "exp": [f"p = (tl.exp({clamp}.to(tl.float32)) + 0.25).to(tl.int32)", f"p = p.to({acc})"],
            "rowmax": [f"p = tl.where(p == tl.max(p, 1)[:, None], {one}, {zero})"],
            "online": [
                f"top_new = tl.maximum(top, tl.max(p, 1){narrow})",
                f"turn = tl.where(top_new > top, -{one}, {one}){narrow}",
                f"p = tl.where(p >= top_new[:, None], {one}, {zero})",
                f"total = total * turn + tl.sum(p, 1){narrow}",
                "top = top_new", "acc *= turn[:, None]",
            ],
        }[link]  # fmt: skip
        if link == "online":
            w.line("pre", f"top = tl.full(({f['m']},), -1000, {acc})")
            w.line("pre", f"total = tl.zeros(({f['m']},), {acc})")
        for text in lines:
            w.line("body", text)
        kind = "fp32" if self.kind in ("tf32", "tf32x3") else self.kind
        w.line("body", f"p = p.to({TL[kind]})")
        v = self.operand("v", "nd", 0)
        if link == "online":
            f["add"] = "plus" if f["add"] in ("rescale", "rescale_row") else f["add"]
        self.accumulate("acc", "m", "d", [("p", v)], (8 if link == "exp" else 2) * v.bound * f["n"])

    # --- putting it together ----------------------------------------------------------------------------------------
    def body(self) -> list[str]:
        f, part = self.f, self.w.sections
        inside = [*part.get("pre", []), *self.loop(), *part.get("post", [])]
        setup = part.get("setup", [])
        if f["loop"] == "tiles":
            tiles = self.gm * self.gn
            where = [f"pm = t % {self.gm}", f"pn = t // {self.gm}", *part["place"]]
            head = f"for t in range(tl.program_id(0), {tiles}, tl.num_programs(0)):"
            if f["seen"] == "number":
                where = [f"t = tl.program_id(0) + {self.counted}", *where]
            return [*setup, head, *indented([*where, *inside])]
        where = ["pm = tl.program_id(0)", "pn = tl.program_id(1)", *part["place"]]
        if f["jump"] == "return":
            where += (
                [f"if pm == {self.gm - 1}:", "    if pn == 0:", "        return"]
                if self.gm > 1
                else []
            )
        return [*setup, *where, *inside]

    def loop(self) -> list[str]:
        f, part, t = self.f, self.w.sections, self.t
        first = [f"i = {self.counted}"] if f["seen"] == "number" and f["loop"] != "tiles" else []
        inner = [*first, *part["index"], *self.jump(), *part["body"], *part.get("end", [])]
        inner = [line for text in inner for line in text.split("\n")]
        kind = f["loop"]
        if kind == "while":
            return ["it = 0", f"while it < {t}:", *indented(["i = it", "it += 1", *inner])]
        if kind == "from1":
            return [f"for i1 in range(1, {t} + 1):", *indented(["i = i1 - 1", *inner])]
        if kind == "kstep":
            return [
                f"for k0 in range(0, {f['steps'] * f['k']}, {f['k']}):",
                *indented([f"i = k0 // {f['k']}", *inner]),
            ]
        if kind == "nested":
            return [
                f"for o in range(({t} + 1) // 2):", "    for q in range(2):",
                f"        if o * 2 + q < {t}:", "            i = o * 2 + q", *indented(inner, 3),
            ]  # fmt: skip
        head = {
            "for": f"range({t})", "runtime": f"range({t})", "static": f"tl.static_range({t})", "tiles": f"range({t})",
            "range": f"tl.range(0, {t}, num_stages={f['stages']})",
        }[kind]  # fmt: skip
        return [f"for i in {head}:", *indented(inner)]

    def jump(self) -> list[str]:
        f = self.f
        if f["jump"] == "break":
            return [f"if i == {self.w.scalar('E', max(f['steps'] - 1, 1))}:", "    break"]
        if f["jump"] == "continue":
            return ["if i % 2 == 1:", "    continue"]
        if f["jump"] == "data":
            flags = self.w.array("flag_ptr", "i32", 16, low=0, high=5)
            return [f"if tl.load({flags} + i) > 4:", "    break"]
        return []
