"""Random loops in which one tile is an operand of several products: as it is and transposed, on the left and on the
right, and what the first product gives in a second one, too. The tile `b` has the axes k, which moves unless the tile
is held, and n."""

from __future__ import annotations

from random import Random

from tests.fuzz.case import Case
from tests.fuzz.generators import dots, features
from tests.fuzz.generators.dots import Dots
from tests.fuzz.generators.features import Features, Pick
from tests.fuzz.generators.operands import Axis
from tests.fuzz.generators.writer import TL

# Of each form the products: what is multiplied, and the axes of the result. «'» transposes.
FORMS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "right": (("a", "b", "mn"), ("v1", "b'", "mk")),
    "left": (("b", "v2", "km"), ("b'", "v3", "nm")),
    "gram": (("b'", "b", "nn"), ("b", "b'", "kk")),
    "sides": (("a", "b", "mn"), ("b", "v2", "km")),
    "crossed": (("b'", "v3", "nm"), ("v1", "b'", "mk")),
    "thrice": (("a", "b", "mn"), ("b", "v2", "km"), ("b'", "b", "nn")),
    "attend": (("p", "b", "mn"),),
    "backward": (("p", "b", "mn"), ("p'", "v1", "kn")),
}
AXES = {"a": "mk", "b": "kn", "v1": "mn", "v2": "nm", "v3": "km"}
RAW = Pick("same", "i8", "fp16", "fp32", "bf16", "fp8e5", "int4", plain=0.75)
TABLE = dots.TABLE | {
    "form": Pick(*FORMS, plain=0.1), "way": Pick("T", "trans", "permute", "named"),
    "held": Pick(False, True, plain=0.6), "bare": Pick(True, False, plain=0.8),
    "m": Pick(64, 128, 32, 16, plain=0.6), "n": Pick(32, 64, 16, 128, plain=0.4), "k": Pick(64, 32, 128, 16, plain=0.5),
    "steps": Pick(2, 3, 5, 1, 0, weights=(4, 4, 3, 2, 0.3)),
    "type": Pick("tf32", "i8", "fp16", "fp8e5", "fp8e4nv", "bf16", "fp32", "tf32x3", "fp64",
                 weights=(4, 3, 2, 2, 2, 1, 1, 1, 0.5)),
    "a_raw": RAW, "b_raw": RAW, "v_raw": Pick("same", "i8", "fp32", "fp16", plain=0.75),
    "dots": Pick("one"), "add": Pick("plus", "arg", "minus", "rescale", plain=0.4), "acc": Pick("wide"),
    "data": Pick("exact"), "grid": Pick((1, 1), (2, 1), plain=0.8), "offset": Pick(0, 1, plain=0.9),
    "loop": Pick("for", "runtime", "range", "tiles", "while", "static", "nested", plain=0.3),
    "jump": Pick("none", "break", "continue", plain=0.9), "stages": Pick(3, 2, 4, 1, 5, plain=0.3),
    "work": Pick("same", "wide", plain=0.7), "inside": Pick("none", "if", plain=0.9), "seen": Pick("nothing"),
    "maps": Pick(True, False, plain=0.6), "fixed": Pick("pre", "body"), "warps": Pick(4, 8, 2, 1, plain=0.6),
}  # fmt: skip


def draw(random: Random) -> Features:
    def any_kind() -> Features:
        plain = {} if random.random() < 0.15 else dots.BARE
        return features.draw(TABLE, random) | plain

    return dots.quick(any_kind) | dots.edges(random)


def build(f: Features, seed: int) -> Case:
    return dots.build(f, seed, Reused)


class Reused(Dots):
    family = "reused"

    def __init__(self, f: Features, seed: int, high: int) -> None:
        if f["type"] in ("i8", "fp8e4nv", "fp8e5"):  # each axis may be summed over
            f = f | {name: max(f[name], 32) for name in "mnk"}
        super().__init__(f, seed, high)
        self.bounds: dict[str, float] = {}

    def axes(self) -> dict[str, Axis]:
        """Of a tile that is held, no axis moves."""
        made = super().axes()
        if self.f["held"]:
            k, total = self.f["k"], min(made["k"].total, self.f["k"])
            made["k"] = Axis(k, total, "ka", "0", False, k, made["k"].ragged)
        return made

    def plain(self) -> None:
        f, products = self.f, FORMS[self.f["form"]]
        self.load("b")
        chained = products[0][0] == "p"
        used = {x.rstrip("'") for x, y, _ in products for x in (x, y)} | (
            {"v1"} if chained else set()
        )
        for name in sorted(used & AXES.keys() - {"b"}):
            self.load(name)
        turned = any("'" in x + y for x, y, _ in products) or chained
        if turned and f["way"] == "named":
            self.w.line("body", "b_turned = tl.trans(b)")
        if chained:
            self.link()
        for number, (x, y, axes) in enumerate(products):
            summed = f[self.axes_of(x)[1]]
            bound = self.bounds[x.rstrip("'")] * self.bounds[y.rstrip("'")] * summed
            self.accumulate(f"acc{number}", axes[0], axes[1], [(self.side(x), self.side(y))], bound)

    def load(self, name: str) -> None:
        at = "body" if any(self.ax[x].moves for x in AXES[name]) else self.f["fixed"]
        if at == "pre":  # in front of the loop, where there is no step
            steps = self.f[f"{name[0]}_steps"]
            kept = [s for s in steps if s[0] != "step" and s[1] not in ("scalar", "tile")]
            changed: Features = {f"{name[0]}_steps": tuple(kept)}
            self.f = {**self.f, **changed}
        self.bounds[name] = self.operand(
            name, AXES[name], int(AXES[name][1] != "m" and name != "b"), at
        ).bound

    def axes_of(self, x: str) -> str:
        axes = {**AXES, "p": "mk"}[x.rstrip("'")]
        return axes[::-1] if x.endswith("'") else axes

    def side(self, x: str) -> str:
        """An operand as text."""
        name = x.rstrip("'")
        if name == x:
            return x
        if self.f["way"] == "named" and name == "b":
            return "b_turned"
        return {"trans": f"tl.trans({name})", "permute": f"tl.permute({name}, (1, 0))"}.get(
            self.f["way"], f"{name}.T"
        )

    def link(self) -> None:
        """What the first product gives becomes an operand."""
        self.limit(self.bounds["v1"] * self.bounds["b"] * self.f["n"])
        kind = "fp32" if self.kind in ("tf32", "tf32x3") else self.kind
        product = self.dot("v1", self.side("b'"))
        self.w.line("body", f"s = {product}")
        self.w.line("body", f"p = tl.minimum(tl.maximum(s, -2), 2).to({TL[kind]})")
        self.bounds["p"] = 2

    def finish(self) -> None:
        """Store each sum as it is, of each program in a place of its own."""
        w = self.w
        for number, (_, _, axes) in enumerate(FORMS[self.f["form"]]):
            rows, cols = (self.f[x] for x in axes)
            programs = self.gm * self.gn
            out = w.array(
                f"o{number}_ptr", self.acc_kind, rows * cols * programs, fill="zeros", output=True
            )
            place = f"(pm * {self.gn} + pn) * {rows * cols}"
            index = f"tl.arange(0, {rows})[:, None] * {cols} + tl.arange(0, {cols})[None, :]"
            w.line("post", f"tl.store({out} + {place} + {index}, acc{number})")
