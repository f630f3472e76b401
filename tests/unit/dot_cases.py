"""Loops of products written at random, as source: how operands are made, their types, tile sizes, loops, sums.

All values are small multiples of powers of two, so that every product, sum and conversion is exact in every order:
results must be equal to the interpreter's, bit for bit. A case is its seed, and what is said instead of drawn:

    case = Case(7, {"loop": "while"})
    print(case.source)

`tests/unit/dot_sweep.py` runs cases.
"""

# pyright: basic
from __future__ import annotations

import re
from dataclasses import dataclass

from tests.unit.dot_operands import NAMES, Operand, Operands

HEAD = "import tessera\nimport tessera.language as tl\n\n\n"
SUMS = (
    "dot acc",
    "+= dot",
    "halved",
    "row scaled",
    "column scaled after",
    "two links",
    "two sums",
    "chained",
)
ENDS = ("plain", "plain", "fp16", "relu", "bias", "residual", "two stores", "row sum")


@dataclass
class Case(Operands):
    """One kernel `k`: `source`, `arrays` by parameter, `grid`. The last parameter is `T`, of which `trips` is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sum, self.end = self.pick("sum", SUMS), self.pick("end", ENDS)
        self.acc = {"int8": "int32", "fp64": "fp64"}.get(self.t, "fp32")
        self._write()

    def _write(self) -> None:
        m, n, k = self.m, self.n, self.k
        a, b = Operand("a", "m", "ks", (m, k), 1), Operand("b", "ks", "n", (k, n), 0)
        acc, kind = NAMES[self.acc], self.sum
        dot = f", out_dtype={acc}, input_precision='ieee')"
        self.wide = n
        if self.random.random() < 0.15:  # the same in each step, perhaps made before the loop
            a = Operand("a", "m", "kk", (m, k), -1)
        left = self.operand(a)
        if (
            a.steps < 0
            and not re.search(r"\bi\b", " ".join(self.body))
            and self.random.random() < 0.7
        ):
            self.before, self.body = self.before + self.body, []
        right = self.operand(b)
        add = self.body.append
        if kind == "dot acc":
            add(f"acc = tl.dot({left}, {right}, acc{dot}")
        elif kind == "+= dot":
            add(f"acc += tl.dot({left}, {right}{dot}")
        elif kind == "halved":
            add("acc = acc * 2")
            add(f"acc = tl.dot({left}, {right}, acc{dot}")
        elif kind == "row scaled":
            add(f"acc = acc * {self.vector('lm', m, self.acc)}[:, None]")
            add(f"acc += tl.dot({left}, {right}{dot}")
        elif kind == "column scaled after":
            add(f"acc += tl.dot({left}, {right}{dot} * {self.vector('ln', n, self.acc)}[None, :]")
        elif kind == "two links":
            add(f"acc = tl.dot({left}, {right}, acc{dot}")
            add(f"acc = tl.dot({self.operand(a)}, {self.operand(b)}, acc{dot}")
        elif kind == "two sums":
            add(f"acc = tl.dot({left}, {right}, acc{dot}")
            add(
                f"two = tl.dot({self.random.choice((left, self.operand(a)))}, {self.operand(b)}, two{dot}"
            )
        else:
            self._chained(left, right, dot)
        self._finish(acc)

    def _chained(self, left: str, right: str, dot: str) -> None:
        self.wide = self.random.choice((16, 32, 64))
        p, w = self.fresh("p"), Operand("w", "ln", "lw", (self.n, self.wide), -1)
        self.body.append(f"{p} = tl.dot({left}, {right}{dot}")
        if self.t == "int8":
            self.body.append(f"{p} = {p} % 3")
        elif self.t != "fp64":
            self.body.append(f"{p} = tl.where({p} > 0, 1.0, {p} * 0)")
        self.body.append(f"acc = tl.dot({p}.to({NAMES[self.t]}), {self.operand(w)}, acc{dot}")

    def _finish(self, acc: str) -> None:
        m, n = self.m, self.wide
        rows, columns = m * self.grid[0], n * self.grid[1]
        shape = f"({m}, {n})"
        starts = self.random.choice(("zeros", "zeros", "zeros", "full", "loaded"))
        starts = {"zeros": f"tl.zeros({shape}, {acc})", "full": f"tl.full({shape}, 1, {acc})"}.get(
            starts, ""
        )
        out = "om[:, None]" + f" * {columns} + on[None, :]"
        if not starts:
            starts = f"tl.load({self.array('s', self.acc, rows, columns)} + {out})"
        self.head = [
            "pm, pn = tl.program_id(0), tl.program_id(1)",
            f"lm, ln, lw, kk = tl.arange(0, {m}), tl.arange(0, {self.n}), tl.arange(0, {n}), tl.arange(0, {self.k})",
            f"m, n, om, on = pm * {m} + lm, pn * {self.n} + ln, pm * {m} + lm, pn * {n} + lw",
        ]
        self.sums = ["acc", *(["two"] if self.sum == "two sums" else [])]
        self.starts = [f"{x} = {starts}" for x in self.sums]
        v = " + 2 * ".join(self.sums)
        o = self.array("o", "fp16" if self.end == "fp16" else self.acc, rows, columns)
        self.tail: list[str] = [f"r = {v}"]
        if self.end == "fp16":
            self.tail.append("r = r.to(tl.float16)")
        elif self.end == "relu":
            self.tail.append("r = tl.where(r > 0, r, r * 2)")
        elif self.end == "bias":
            self.tail.append(f"r += tl.load({self.array('c', self.acc, columns)} + on)[None, :]")
        elif self.end == "residual":
            self.tail.append(f"r += tl.load({self.array('c', self.acc, rows, columns)} + {out})")
        elif self.end == "two stores":
            self.tail.append(
                f"tl.store({self.array('o', self.acc, rows, columns)} + {out}, acc + 1)"
            )
        elif self.end == "row sum":
            self.tail.append(
                f"tl.store({self.array('o', self.acc, rows, self.grid[1])} + om * {self.grid[1]} + pn, tl.sum(acc, 1))"
            )
        mask = self.random.choice(
            ("", f", (om[:, None] < {rows - 3}) & (on[None, :] < {columns - 1})")
        )
        self.tail.append(f"tl.store({o} + {out}, r{mask})")

    @property
    def source(self) -> str:
        body = [f"ks = i * {self.k} + kk", *self.body, *self.after]
        inner = [f"    {x}" for x in body]
        loop = self.loop
        if loop in ("none", "outside"):
            lines = ["i = 0", *body]
        elif loop == "by k":
            lines = [
                f"for k0 in range(0, T * {self.k}, {self.k}):",
                f"    i = k0 // {self.k}",
                *inner,
            ]
            lines[2] = "    ks = k0 + kk"
        elif loop == "while":
            lines = ["i = 0", "while i < T:", *inner, "    i += 1"]
        elif loop == "nested":
            lines = [
                "for j in range(2):",
                "    for i0 in range(T):",
                "        i = j * T + i0",
                *("    " + x for x in inner),
            ]
        elif loop == "branch":
            lines = ["for i in range(T):", "    if i != 1:", *("    " + x for x in inner)]
        elif loop == "break":
            lines = ["for i in range(T):", "    if i == 2:", "        break", *inner]
        else:
            bounds = {
                "from 1": "1, T + 1",
                "step 2": "0, 2 * T, 2",
                "constexpr": str(self.trips),
            }.get(loop, "T")
            lines = [f"for i in range({bounds}):", *inner]
        whole = [*self.head, *self.before, *self.starts, *lines, *self.tail]
        return f"@tessera.jit\ndef k({', '.join(self.arrays)}, T):\n" + "".join(
            f"    {x}\n" for x in whole
        )
