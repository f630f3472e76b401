"""Operands of dots: how a tile is laid out in memory, reached, loaded, and computed before it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fuzz.generators.writer import EXACT, TL, Inexact, Writer

ACCESSES = ("index", "advance", "block", "desc", "host", "found")
DESCRIPTORS = ("desc", "host", "found")
RAWS = ("same", "i8", "fp16", "bf16", "fp32", "u8", "i32", "int4", "nibble", "fp8e5")
OPS = (
    "mul", "add", "sub", "where", "parity", "step", "neg", "abs", "relu", "round", "turn", "reshape", "join",
    "exp",
)  # fmt: skip
PLACES = ("free", "k", "scalar", "tile")
SOURCES = ("const", "load", "pre", "i8", "fp16", "bf16", "i32", "computed", "twice", "carried")


@dataclass
class Axis:
    """One axis of a tile: its extent, that of the array, the elements' indices and the first one, as text."""

    extent: int
    total: int
    index: str
    first: str
    moves: bool  # with the step of the loop
    span: int  # indices that may occur, whether they are in the array or not
    ragged: bool = False

    def half(self) -> Axis:
        """The axis of bytes that hold two elements each."""
        index = {"kk": "k2", "ka": "ka2", "nn": "n2"}[self.index]
        first = self.first.replace(f"* {self.extent}", f"* {self.extent // 2}")
        total = (self.total + 1) // 2
        return Axis(self.extent // 2, total, index, first, self.moves, self.span // 2, self.ragged)


class Operand:
    """A tile of the array `name` over the axes `rows` and `cols`, of which `inner` (0 or 1) is summed over."""

    def __init__(
        self, w: Writer, f: dict[str, Any], name: str, axes: tuple[Axis, Axis], inner: int, kind: str, high: int
    ) -> None:  # fmt: skip
        self.w, self.f, self.name, self.axes, self.inner, self.high = w, f, name, axes, inner, high
        side = name[0]
        self.kind = kind  # the operand's type
        self.raw = f[f"{side}_raw"]
        if kind == "i8" and self.raw == "fp8e5":
            self.raw = "i32"
        self.order = f[f"{side}_order"]
        self.steps = f[f"{side}_steps"] if len(name) == 1 or f["second"] == "same" else ()
        self.bound = high
        self.count = 0

    # --- loading ----------------------------------------------------------------------------------------------------
    def emit(self, at: str) -> str:
        """Write the load and what follows it into the section `at`; gives the name of the tile."""
        x = self.name
        packed = self.raw in ("int4", "nibble")
        axes = self._packed_axes() if self.raw == "int4" else self.axes
        dtype = {"same": self.kind, "int4": "u8", "nibble": "u8"}.get(self.raw, self.raw)
        if dtype in ("tf32", "tf32x3"):
            dtype = "fp32"
        self.dtype = dtype
        if self.raw == "nibble":
            self._load(at, self._packed_axes(), dtype, lanes=True)
        else:
            self._load(at, axes, dtype)
        if packed:
            self._unpack(at)
            self.bound = 8
        if (
            self.f.get("bare") and dtype == self.stored_kind() and not self.steps
        ):  # nothing is computed
            self._check()
            return x
        work = self._work()
        if work != dtype:
            self.w.line(at, f"{x} = {x}.to({TL[work]})")
        for op, place, source in self.steps:
            self._step(at, op, place, source)
        self._finish(at)
        return x

    def _packed_axes(self) -> tuple[Axis, Axis]:
        first, second = self.axes
        return (first, second.half()) if self.inner else (first.half(), second)

    def _work(self) -> str:
        """The type that the operand is computed in."""
        if self.kind == "i8":
            return "i32"
        own = self.kind if self.kind in ("fp16", "bf16", "fp64") else "fp32"
        if self.kind.startswith("fp8"):
            own = "fp16"
        return own if self.f["work"] == "same" else "fp32"

    def _load(self, at: str, axes: tuple[Axis, Axis], dtype: str, lanes: bool = False) -> None:
        w, x = self.w, self.name
        access = self.f["access"]
        size = [a.total for a in axes]
        major = 0 if self.order == "row" else 1
        ld = size[1 - major] + self.f["pad"]
        if access in DESCRIPTORS:
            ld = -(-ld // 16) * 16
        low, high = (
            (0, 2) if dtype == "u8" and not lanes and self.raw == "u8" else (-self.high, self.high)
        )
        fill = "bits" if self.raw in ("int4", "nibble") else "ints"
        if self.f["data"] == "normal" and dtype[0] in "fb":
            fill = "normal"
        offset = 0 if access in DESCRIPTORS else self.f["offset"]
        how = {"low": low, "high": high, "offset": offset, "output": self._stored()}
        w.array(f"{x}_ptr", dtype, size[major] * ld, fill=fill, **how)
        strides = ["1", "1"]
        strides[major] = self._number(f"{x}_ld", ld)
        if access == "block":
            self._block_pointer(at, axes, strides, major)
        elif access in DESCRIPTORS:
            self._descriptor(at, axes, ld, major)
        else:
            self._pointers(at, axes, strides, lanes)

    def _number(self, name: str, value: int) -> str:
        return self.w.scalar(name, value) if self.f["strides"] == "args" else str(value)

    def _pointers(self, at: str, axes: tuple[Axis, Axis], strides: list[str], lanes: bool) -> None:
        w, x = self.w, self.name
        moving = self.f["access"] == "advance" and any(a.moves for a in axes) and not lanes
        terms, masks = [], []
        for i, (axis, stride) in enumerate(zip(axes, strides)):
            view = "[:, None]" if i == 0 else "[None, :]"
            index = axis.index
            if lanes and i == self.inner:
                index = f"({self.axes[i].index} // 2)"
            if axis.ragged and self.f["mask"] != "wrap":
                own = self.axes[i] if lanes else axis
                masks.append(f"({own.index} < {own.total}){view}")
            if moving and axis.moves:
                index = {"kk": "ka", "k2": "ka2", "nn": "na", "n2": "na2"}[index]
                w.line("end", f"p_{x} += {axis.extent} * {stride}")
            terms.append(f"{index}{view} * {stride}" if stride != "1" else f"{index}{view}")
        if self.f["triangle"] and self.raw not in ("int4", "nibble"):
            masks.append(f"({axes[1].index}[None, :] <= {axes[0].index}[:, None])")
        pointer = f"{x}_ptr + {terms[0]} + {terms[1]}"
        if moving:
            w.line("pre", f"p_{x} = {pointer}")
            pointer = f"p_{x}"
        how = ""
        if masks:
            other = (
                ""
                if self.f["other"] is None or self.raw in ("int4", "nibble")
                else f", other={self.f['other']}"
            )
            how = f", mask={' & '.join(masks)}{other}"
        w.line(at, f"{x} = tl.load({pointer}{how})")
        if self._stored():
            place = f"{x}_ptr + tl.arange(0, 16)"
            one = self._ones("(16,)")
            for text in (f"tl.store({place}, {one})", "tl.debug_barrier()"):
                w.line("pre", text)

    def _stored(self) -> bool:
        """Whether the kernel stores a part of the array before it is loaded."""
        return self.f["seen"] == "tile" and self.name == "b"

    def _ones(self, shape: str) -> str:
        wide = "tl.float32" if self.dtype[0] in "fb" else "tl.int32"
        return f"tl.full({shape}, 1, {wide}).to({TL[self.dtype]})"

    def _block_pointer(
        self, at: str, axes: tuple[Axis, Axis], strides: list[str], major: int
    ) -> None:
        w, x = self.w, self.name
        moves = any(a.moves for a in axes) and self.f["jump"] not in ("continue",)
        first = ["0" if a.moves and moves else a.first for a in axes]
        order = "(1, 0)" if major == 0 else "(0, 1)"
        made = (
            f"p_{x} = tl.make_block_ptr({x}_ptr, ({axes[0].total}, {axes[1].total}), ({strides[0]}, {strides[1]}), "
            f"({first[0]}, {first[1]}), ({axes[0].extent}, {axes[1].extent}), {order})"
        )
        w.line("pre" if moves else at, made)
        check = tuple(i for i, a in enumerate(axes) if a.ragged)
        how = f', boundary_check={check}, padding_option="zero"' if check else ""
        w.line(at, f"{x} = tl.load(p_{x}{how})")
        if moves:
            by = [str(a.extent) if a.moves else "0" for a in axes]
            w.line("end", f"p_{x} = tl.advance(p_{x}, ({by[0]}, {by[1]}))")

    def _descriptor(self, at: str, axes: tuple[Axis, Axis], ld: int, major: int) -> None:
        w, x = self.w, self.name
        pair = axes if major == 0 else axes[::-1]
        shape, block = [a.total for a in pair], [a.extent for a in pair]
        if self.f["access"] == "host":
            d = other = w.descriptor(f"{x}_ptr", shape, [ld, 1], block)
        else:
            d, other = f"d_{x}", f"{x}_stored"
            found = self.f["access"] == "found"
            sizes = [
                self._found(f"{x}_size{i}", n) if found else str(n) for i, n in enumerate(shape)
            ]
            of = f"[{', '.join(sizes)}], [{ld}, 1], {block}"
            w.line("setup", f"{d} = tl.make_tensor_descriptor({x}_ptr, {of})")
            if self._stored():  # through another descriptor of the same array
                base = f"tl.multiple_of({x}_ptr, 16)"
                w.line("setup", f"{other} = tl.make_tensor_descriptor({base}, {of})")
        if self._stored():
            one = self._ones(f"({block[0]}, {block[1]})")
            w.line("pre", f"{other}.store([0, 0], {one})")
        turned = ".T" if major == 1 else ""
        w.line(at, f"{x} = {d}.load([{pair[0].first}, {pair[1].first}]){turned}")

    def _found(self, name: str, number: int) -> str:
        """An extent that the kernel reads from memory, so that a compiler knows nothing of it."""
        self.w.array(name, "i32", 1, fill="ints", low=number, high=number)
        return f"tl.load({name})"

    def _unpack(self, at: str) -> None:
        w, x, inner = self.w, self.name, self.inner
        if self.raw == "nibble":
            view = "[None, :]" if inner else "[:, None]"
            w.line(
                at, f"{x} = ({x} >> (({self.axes[inner].index} % 2) * 4).to(tl.uint8){view}) & 15"
            )
            w.line(at, f"{x} = {x}.to(tl.int32) - 8")
            return
        rows, cols = (a.extent for a in self.axes)
        w.line(at, f"{x}_low = ({x} & 15).to(tl.int8) - 8")
        w.line(at, f"{x}_high = ({x} >> 4).to(tl.int8) - 8")
        joined = f"tl.join({x}_low, {x}_high)" + ("" if inner else ".permute(0, 2, 1)")
        w.line(at, f"{x} = {joined}.reshape({rows}, {cols})")

    # --- computing --------------------------------------------------------------------------------------------------
    def _step(self, at: str, op: str, place: str, source: str) -> None:
        w, x = self.w, self.name
        rows, cols = (a.extent for a in self.axes)
        inner = self.axes[self.inner].index
        view = "[None, :]" if self.inner else "[:, None]"
        plain = {
            "neg": f"«-{x}¦{x}»", "abs": f"tl.abs({x})", "relu": f"tl.maximum({x}, 0)",
            "where": f"tl.where({x} > 0, {x}, 0)", "parity": f"tl.where(({inner} % 2 == 0){view}, {x}, «-{x}¦{x}»)",
            "step": f"tl.where(i % 2 == 0, {x}, «-{x}¦{x}»)", "turn": f"tl.trans(tl.trans({x}) * 1)",
            "reshape": f"{x}.reshape({rows * cols}).reshape({rows}, {cols})",
            "join": f"tl.join({x}, -{x}).reshape({rows}, {cols * 2}).reshape({rows}, {cols}, 2).split()[0]",
            "round": f"{x}.to({'tl.int16' if self.kind == 'i8' else 'tl.float16'}).to(tl.float32)",
        }  # fmt: skip
        if op == "join":
            w.line(at, f"{x}_0, {x}_1 = tl.split(tl.join({x}, «-{x}¦{x}»))")
            w.line(at, f"{x} = {x}_0 «-¦+» {x}_1")
            self.bound *= 2
        elif op == "exp":  # of whole numbers; a quarter above, it is far from those
            k = f"tl.minimum(tl.maximum({x}, -2), 2).to(tl.float32)"
            w.line(at, f"{x} = (tl.exp({k}) + 0.25).to(tl.int32).to({TL[self._work()]})")
            self.bound = 8
        elif op in plain:
            if op == "round" and self.kind == "i8":
                w.line(at, f"{x} = {x}.to(tl.int16).to(tl.int32)")
            else:
                w.line(at, f"{x} = {plain[op]}")
        else:
            value, bound = self._factor(at, place, source)
            sign = {"mul": "*", "add": "+", "sub": "-"}[op]
            w.line(at, f"{x} = {x} {sign} {value}")
            self.bound = self.bound * bound if op == "mul" else self.bound + bound
        self._check()

    def _factor(self, at: str, place: str, source: str) -> tuple[str, int]:
        """A factor or summand as text, and its greatest magnitude."""
        w, x = self.w, self.name
        self.count += 1
        v = f"{x}_v{self.count}"
        free = self.axes[1 - self.inner]
        view_free, view_k = ("[:, None]", "[None, :]") if self.inner else ("[None, :]", "[:, None]")
        axis = {"free": free, "k": self.axes[self.inner]}.get(place)
        if source == "const" or (place == "tile" and source in ("computed", "carried", "pre")):
            return ("2", 2)
        index = axis.index if axis else "i"
        view = {"free": view_free, "k": view_k}.get(place, "")
        if place == "tile":
            rows, cols = (a.index for a in self.axes)
            width = self.axes[1].span
            index = f"{rows}[:, None] * {width} + {cols}[None, :]"
        if source == "computed":
            return f"({index} % 3 «-¦+» 1){view}", 1
        span = (
            axis.span
            if axis
            else (self.axes[0].span * self.axes[1].span if place == "tile" else 16)
        )
        dtype = (
            source
            if source in ("i8", "fp16", "bf16", "i32")
            else ("i32" if self.kind == "i8" else "fp32")
        )
        w.array(f"{v}_ptr", dtype, span)
        loaded = f"tl.load({v}_ptr + {index})"
        if source in ("fp16", "bf16") and self.kind != "i8":
            loaded += ".to(tl.float32)"
        if source in ("fp16", "bf16") and self.kind == "i8":
            loaded += ".to(tl.int32)"
        moving = (axis is None) or axis.moves or place == "tile"
        if source in ("pre", "carried") and not moving:
            w.line("pre", f"{v} = {loaded}")
            if source == "carried":
                w.line("end", f"{v} = «-{v}¦{v}»")
            return f"{v}{view}", 2
        w.line(at, f"{v} = {loaded}" + (" * 2" if source == "twice" else ""))
        return f"{v}{view}", 4 if source == "twice" else 2

    def _check(self) -> None:
        if self.f["data"] == "normal":
            return
        kinds = {self.kind, self._work()} - {"tf32x3"}
        kinds |= {"fp16"} if any(s[0] == "round" for s in self.steps) else set()
        if self.kind != "i8" and self.bound > min(EXACT[k] for k in kinds):
            raise Inexact

    def stored_kind(self) -> str:
        return "fp32" if self.kind in ("tf32", "tf32x3") else self.kind

    def _finish(self, at: str) -> None:
        self._check()
        kind = self.stored_kind()
        if self.raw != "same" or self.steps or self._work() != kind:
            self.w.line(at, f"{self.name} = {self.name}.to({TL[kind]})")
        if self.kind == "i8":
            self.bound = 128
