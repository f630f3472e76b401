"""How operands of random products are made: where their elements lie, as what type, and what becomes of them."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = {
    "fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp64": np.float64,
    "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2,
}  # fmt: skip
TYPES = {**FLOATS, "int8": np.int8, "int32": np.int32}
NAMES = {
    "fp32": "tl.float32", "fp16": "tl.float16", "bf16": "tl.bfloat16", "fp64": "tl.float64",
    "fp8e4nv": "tl.float8e4nv", "fp8e5": "tl.float8e5", "int8": "tl.int8", "int32": "tl.int32",
}  # fmt: skip
OPERANDS = (
    "fp32",
    "fp32",
    "fp32",
    "fp16",
    "fp16",
    "bf16",
    "bf16",
    "int8",
    "fp8e4nv",
    "fp8e5",
    "fp64",
)
ORDERS = (
    "rows",
    "rows",
    "columns",
    "trans",
    "advance",
    "block",
    "descriptor",
    "indirect",
    "reshape",
)
SOURCES = ("constant", "loaded", "converted", "computed", "index", "sum")
CHANGES = (
    "scale",
    "scale",
    "shift",
    "where",
    "where loaded",
    "difference",
    "round trip",
    "reduced",
)
LOOPS = ("for", "for", "for", "by k", "from 1", "step 2", "while", "nested", "branch", "break", "constexpr",
         "outside", "none")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a dot: its rows and columns by name, their numbers, and which of them is k."""

    name: str
    rows: str
    columns: str
    shape: tuple[int, int]  # of the tile
    steps: int  # 0: the rows, 1: the columns advance with each step; -1: neither


@dataclass
class Operands:
    """The statements of a loop's body that make its operands, drawn by a seed, and the arrays that they read.

    `fixed`: what is said instead of drawn, by name. The step is `i`, its numbers along k are `ks`; `kk`, `lm`, `ln` and
    `lw` count within a tile, `m` and `n` over all programs."""

    seed: int
    fixed: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        self.t = self.pick("type", OPERANDS)
        self.loop = self.pick("loop", LOOPS)
        self.m, self.n = (int(self.pick(x, (16, 32, 32, 64, 64, 8, 128))) for x in "mn")
        self.k = int(self.pick("k", (16, 32, 32, 64, 8, 128)))
        self.trips = int(self.pick("trips", (0, 1, 2, 2, 3, 3, 5)))
        self.grid = (self.random.choice((1, 1, 2)), self.random.choice((1, 1, 2)))
        steps = {
            "from 1": self.trips + 1,
            "step 2": 2 * self.trips,
            "nested": 2 * self.trips,
            "none": 1,
        }
        self.all_steps = max(steps.get(self.loop, self.trips), 1)

    def pick(self, what: str, choices: Any) -> Any:
        found = self.random.choice(choices)
        return self.fixed.get(what, found)

    def fresh(self, hint: str = "x") -> str:
        self.names += 1
        return f"{hint}{self.names}"

    # --- memory -----------------------------------------------------------------------------------------------------
    def array(self, hint: str, t: str, *shape: int, low: int = -2, high: int = 3) -> str:
        """A parameter: an array of whole numbers."""
        name = self.fresh(hint)
        self.arrays[name] = self.numbers.integers(low, high, shape).astype(TYPES[t])
        return name

    def powers(self, hint: str, t: str, *shape: int) -> str:
        """A parameter: factors that keep every product exact."""
        name = self.fresh(hint)
        choices = [1, -1, 2] if t in ("int8", "int32") else [0.5, 1, -1, 2]
        self.arrays[name] = self.numbers.choice(choices, shape).astype(TYPES[t])
        return name

    def storage(self) -> str:
        """The type in memory of an operand's elements."""
        if self.t == "int8":
            return "int8"
        return self.random.choice((self.t, self.t, "fp32", "fp16", "int8", "bf16"))

    def tile(self, x: Operand, t: str) -> str:
        """The elements of this step from an array of their own; the name of the tile."""
        order = self.pick("order", ORDERS)
        p, (rows, columns) = self.array(x.name, t, *self._extents(x)), self._extents(x)
        r, c = x.rows, x.columns
        out = self.fresh(x.name)
        mask = self._mask(x) if order in ("rows", "columns", "indirect", "advance") else ""
        if order in ("columns", "trans"):
            self.arrays[p] = np.ascontiguousarray(self.arrays[p].T)
        add = self.body.append
        if order == "columns":
            add(f"{out} = tl.load({p} + {r}[:, None] + {c}[None, :] * {rows}{mask})")
        elif order == "trans":
            add(f"{out} = tl.trans(tl.load({p} + {c}[:, None] * {rows} + {r}[None, :]))")
        elif order == "advance" and x.steps >= 0 and self._uniform():
            first = [r.replace("ks", "kk"), c.replace("ks", "kk")]
            self.before.append(
                f"{p}_at = {p} + {first[0]}[:, None] * {columns} + {first[1]}[None, :]"
            )
            add(f"{out} = tl.load({p}_at{mask})")
            self.after_step(f"{p}_at += {x.shape[x.steps] * (columns if x.steps == 0 else 1)}")
        elif order == "block":
            corner = [self._corner(v) for v in (r, c)]
            add(f"{p}_b = tl.make_block_ptr({p}, ({rows}, {columns}), ({columns}, 1), ({corner[0]}, {corner[1]}), "
                f"{x.shape}, (1, 0))")  # fmt: skip
            add(f"{out} = tl.load({p}_b)")
        elif order == "descriptor" and x.shape[1] * np.dtype(TYPES[t]).itemsize >= 16:
            self.before.append(
                f"{p}_d = tl.make_tensor_descriptor({p}, [{rows}, {columns}], [{columns}, 1], {list(x.shape)})"
            )
            add(f"{out} = {p}_d.load([{self._corner(r)}, {self._corner(c)}])")
        elif order == "indirect":
            table = self.fresh("t")
            self.arrays[table] = self.numbers.integers(0, rows, rows).astype(np.int32)
            add(
                f"{out} = tl.load({p} + tl.load({table} + {r})[:, None] * {columns} + {c}[None, :]{mask})"
            )
        elif order == "reshape" and x.shape[0] % 2 == 0:
            half = x.shape[0] // 2
            halves = (
                f"tl.arange(0, 2)[:, None, None] * {half} + tl.arange(0, {half})[None, :, None]"
            )
            add(f"{p}_h = {self._corner(r)} + {halves}")
            add(
                f"{out} = tl.reshape(tl.load({p} + {p}_h * {columns} + {c}[None, None, :]), {x.shape})"
            )
        else:
            add(f"{out} = tl.load({p} + {r}[:, None] * {columns} + {c}[None, :]{mask})")
        return out

    def after_step(self, line: str) -> None:
        self.after.append(line)

    def _uniform(self) -> bool:
        return self.loop in ("for", "by k", "while", "constexpr")

    def _extents(self, x: Operand) -> tuple[int, int]:
        found = [x.shape[0], x.shape[1]]
        for d, name in enumerate((x.rows, x.columns)):
            found[d] *= {"m": self.grid[0], "n": self.grid[1], "ks": self.all_steps}.get(name, 1)
        return found[0], found[1]

    def _corner(self, v: str) -> str:
        return {"m": f"pm * {self.m}", "n": f"pn * {self.n}", "ks": f"i * {self.k}"}.get(v, "0")

    def _mask(self, x: Operand) -> str:
        if self.random.random() < 0.6:
            return ""
        rows, columns = self._extents(x)
        less = [self.random.choice((0, 1, 3)) for _ in range(2)]
        tests = [
            f"({x.rows}[:, None] < {rows - less[0]})",
            f"({x.columns}[None, :] < {columns - less[1]})",
        ]
        chosen = self.random.choice((tests, tests[:1], tests[1:]))
        other = self.random.choice(("0", "0", "1"))
        return f", mask={' & '.join(chosen)}, other={other}"

    # --- what becomes of the elements ---------------------------------------------------------------------------------
    def operand(self, x: Operand) -> str:
        """Statements that make an operand of this step; its name."""
        if self.t != "int8" and x.steps == 0 and self.random.random() < 0.12:
            v = self._int4(x)
        else:
            v = self.tile(x, self.storage())
        count = self.random.choice((0, 0, 1, 1, 2))
        if "change" in self.fixed:
            count = max(count, 1)
        wide = self.random.choice((True, False)) and self.t not in ("int8", "fp64")
        if count:
            middle = "fp32" if wide or self.t.startswith("fp8") else self.t
            self.body.append(f"{v} = {v}.to({NAMES[middle]})")
            for _ in range(count):
                v = self.change(x, v, middle)
        through = ".to(tl.float32)" if self.t.startswith("fp8") else ""
        self.body.append(f"{v} = {v}{through}.to({NAMES[self.t]})")
        return v

    def _int4(self, x: Operand) -> str:
        """Two elements of a column in each byte."""
        rows, columns = self._extents(x)
        p = self.fresh("q")
        self.arrays[p] = self.numbers.integers(0, 256, (rows // 2, columns)).astype(np.uint8) & 0x33
        out = self.fresh("q")
        self.body.append(
            f"{out} = tl.load({p} + ({x.rows} // 2)[:, None] * {columns} + {x.columns}[None, :])"
        )
        self.body.append(
            f"{out} = (({out} >> (({x.rows} % 2) * 4)[:, None]) & 0xF).to(tl.int8) - 2"
        )
        return out

    def vector(self, index: str, size: int, t: str) -> str:
        """Factors along one dimension (or one, with size 1), in type `t`; its name."""
        source = self.pick("source", SOURCES)
        out, to = self.fresh("v"), f".to({NAMES[t]})"
        at = f" + i * {size}" if self.random.random() < 0.7 else ""
        steps = self.all_steps if at else 1
        lane = f" + {index}" if index else ""
        narrow = "int8" if t in ("int8", "int32") else self.random.choice(("int8", "fp16", "bf16"))
        if source == "constant":
            text = f"tl.full(({size},), 2, {NAMES[t]})" if index else "2"
        elif source == "index":
            text = f"(({index} + i) % 2 + 1){to}" if index else f"(i % 2 + 1){to}"
        else:
            same = source in ("loaded", "computed", "sum")
            text = f"tl.load({self.powers('z', t if same else narrow, steps, size)}{at}{lane})"
            text += {
                "converted": to,
                "computed": " * 2",
                "sum": f" + tl.load({self.powers('z', t, size)}{lane})",
            }.get(source, "")
        self.body.append(f"{out} = {text}")
        return out

    def change(self, x: Operand, v: str, t: str) -> str:
        kind, out = self.pick("change", CHANGES), self.fresh("y")
        if kind == "where":
            text = f"tl.where({x.rows}[:, None] % 3 <= {x.columns}[None, :] % 4, {v}, 0)"
        elif kind == "where loaded":
            p = self.array("w", "int8", self._extents(x)[0], low=0, high=2)
            text = f"tl.where((tl.load({p} + {x.rows}) != 0)[:, None], {v}, 0)"
        elif kind == "difference":
            text = f"{v} - {self.tile(x, t)}"
        elif kind == "round trip":
            text = f"-{v}" if t in ("int8", "int32") else f"{v}.to(tl.float16).to({NAMES[t]}) * 1"
        elif kind == "reduced":
            text = f"{v} - tl.max({v}, axis=1)[:, None]"
        else:
            axis = self.random.choice((0, 1, 2))
            local = {"m": "lm", "n": "ln", "ks": "kk"}
            index = (
                "" if axis == 2 else local.get((x.rows, x.columns)[axis], (x.rows, x.columns)[axis])
            )
            z = self.vector(index, 1 if axis == 2 else x.shape[axis], t)
            text = (
                f"{v} {'*' if kind == 'scale' else '-'} {z}{('[:, None]', '[None, :]', '')[axis]}"
            )
        self.body.append(f"{out} = {text}")
        return out
