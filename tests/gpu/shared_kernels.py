"""Kernels in GPU IR, layouts written out, for the tests of shared memory, conversions and products.

One program each. Elements are numbered row-major; a pointer tile in any layout is `base + number of the element`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir import Module, PassManager, parse_module
from tessera.layout import LinearLayout
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_movement.allocate import allocate_shared
from tessera.passes.gpu_movement.barriers import barriers

ALIGNED = '[["divisibility", 16]]'


def tile(shape: Sequence[int], elem: str, layout: LinearLayout | None = None) -> str:
    text = "x".join([*map(str, shape), elem])
    return f"tile<{text}, {layout.text()}>" if layout is not None else f"tile<{text}>"


def shared(shape: Sequence[int], elem: str, layout: LinearLayout) -> str:
    return f"shared<{'x'.join([*map(str, shape), elem])}, {layout.text()}>"


class Kernel:
    """Collects the lines of one kernel; methods return value names."""

    def __init__(
        self, args: Sequence[tuple[str, str]], warps: int = 4, aligned: Sequence[str] = ()
    ) -> None:
        """`aligned`: names of integers that are multiples of 16, as all pointers are."""
        self.args, self.warps, self.aligned = args, warps, aligned
        self.lines: list[str] = []
        self.count = 0

    def op(self, type: str, text: str) -> str:
        self.count += 1
        self.lines.append(f"%v{self.count}: {type} = {text}")
        return f"%v{self.count}"

    def do(self, text: str) -> None:
        self.lines.append(text)

    def numbers(self, layout: LinearLayout) -> str:
        """The number of each element, as int32."""
        flat = layout.reshape((layout.num_elements,))
        index = self.op(tile(flat.shape, "i32", flat), f"arange {{start=0, end={flat.shape[0]}}}")
        return self.op(tile(layout.shape, "i32", layout), f"reshape {index}")

    def pointers(self, base: str, elem: str, layout: LinearLayout) -> str:
        numbers = self.numbers(layout)
        t = tile(layout.shape, f"*{elem}", layout)
        start = self.op(t, f"splat %{base}")
        return self.op(t, f"addptr {start}, {numbers}")

    def load(self, base: str, elem: str, layout: LinearLayout) -> str:
        return self.op(
            tile(layout.shape, elem, layout), f"load {self.pointers(base, elem, layout)}, _, _"
        )

    def store(self, base: str, elem: str, layout: LinearLayout, value: str) -> None:
        self.do(f"store {self.pointers(base, elem, layout)}, {value}, _")

    def convert(self, value: str, elem: str, layout: LinearLayout) -> str:
        return self.op(tile(layout.shape, elem, layout), f"convert_layout {value}")

    def text(self) -> str:
        args = ", ".join(f"%{name}: {type}" for name, type in self.args)
        facts = ", ".join(
            ALIGNED if type.startswith("*") or name in self.aligned else "[]"
            for name, type in self.args
        )
        body = "\n    ".join(self.lines)
        return (
            f"module {{num_warps={self.warps}, num_stages=1}} {{\n"
            f'  func {{name="k", arg_attrs=[{facts}]}} ({args}) {{\n    {body}\n    return []\n  }}\n}}\n'
        )

    def module(self, facts: GpuFacts) -> Module:
        found = parse_module(self.text())
        PassManager([allocate_shared.bind(facts=facts), barriers], verify=True).run(found)
        return found


def conversion(src: LinearLayout, dst: LinearLayout, elem: str) -> Kernel:
    """y = x, read in `src`, converted, written in `dst`."""
    k = Kernel([("x", f"*{elem}"), ("y", f"*{elem}")], src.size("warp"))
    k.store("y", elem, dst, k.convert(k.load("x", elem, src), elem, dst))
    return k


def pointer_conversion(src: LinearLayout, dst: LinearLayout, elem: str) -> Kernel:
    """y = x, where the pointers to x are made in `src` and used in `dst`."""
    k = Kernel([("x", f"*{elem}"), ("y", f"*{elem}")], src.size("warp"))
    moved = k.convert(k.pointers("x", elem, src), f"*{elem}", dst)
    k.store("y", elem, dst, k.op(tile(dst.shape, elem, dst), f"load {moved}, _, _"))
    return k


def through_shared(
    src: LinearLayout, memory: LinearLayout, dst: LinearLayout, elem: str, how: str = "init"
) -> Kernel:
    """y = x (y = x transposed for how="trans") by way of a buffer; how="store": a second tile is stored over the
    first; "trans": the buffer is read as its transpose, `dst` is then a layout of the transposed shape."""
    k = Kernel([("x", f"*{elem}"), ("y", f"*{elem}")], src.size("warp"))
    x, buffer = k.load("x", elem, src), shared(src.shape, elem, memory)
    if how == "store":
        zero = "False" if elem == "i1" else "float('0x0.0p+0')" if elem[0] in "fb" else "0"
        other = k.op(tile(src.shape, elem, src), f"const {{value={zero}}}")
        view = k.op(buffer, f"local_alloc {other}")
        k.do(f"local_store {x}, {view}")
    else:
        view = k.op(buffer, f"local_alloc {x}")
    if how == "trans":
        shape = (src.shape[1], src.shape[0])
        view = k.op(
            shared(shape, elem, memory.trans((1, 0))), f"local_trans {view} {{order=[1, 0]}}"
        )
    value = k.op(tile(dst.shape, elem, dst), f"local_load {view}, _")
    k.store("y", elem, dst, value)
    return k


def ring_copy(
    src: LinearLayout,
    memory: LinearLayout,
    dst: LinearLayout,
    elem: str,
    buffers: int = 3,
    aligned: bool = True,
) -> Kernel:
    """y[i] = x[i] where its number is below n, else 0, for `buffers` tiles copied asynchronously to a ring.

    `aligned`: n is a multiple of 16."""
    args = [("x", f"*{elem}"), ("y", f"*{elem}"), ("n", "i32")]
    k = Kernel(args, src.size("warp"), ["n"] if aligned else [])
    size = src.num_elements
    ring = k.op(shared((buffers, *src.shape), elem, memory), "local_alloc _")
    limit = k.op(tile(src.shape, "i32", src), "splat %n")
    for i in range(buffers):
        index = k.op("i32", f"const {{value={i}}}")
        view = k.op(shared(src.shape, elem, memory), f"local_index {ring}, {index}")
        first = k.op(tile(src.shape, "i32", src), f"const {{value={i * size}}}")
        numbers = k.op(tile(src.shape, "i32", src), f"add {k.numbers(src)}, {first}")
        mask = k.op(tile(src.shape, "i1", src), f"cmp {numbers}, {limit} {{predicate='lt'}}")
        start = k.op(tile(src.shape, f"*{elem}", src), "splat %x")
        pointers = k.op(tile(src.shape, f"*{elem}", src), f"addptr {start}, {numbers}")
        token = k.op("token", f"async_copy {pointers}, {view}, {mask}, _, _")
        k.op("token", f"async_commit [{token}]")
    for i in range(buffers):
        k.op("token", f"async_wait [] {{pending={buffers - 1 - i}}}")
        index = k.op("i32", f"const {{value={i}}}")
        view = k.op(shared(src.shape, elem, memory), f"local_index {ring}, {index}")
        value = k.op(tile(dst.shape, elem, dst), f"local_load {view}, _")
        first = k.op(tile(dst.shape, "i32", dst), f"const {{value={i * size}}}")
        numbers = k.op(tile(dst.shape, "i32", dst), f"add {k.numbers(dst)}, {first}")
        start = k.op(tile(dst.shape, f"*{elem}", dst), "splat %y")
        pointers = k.op(tile(dst.shape, f"*{elem}", dst), f"addptr {start}, {numbers}")
        k.do(f"store {pointers}, {value}, _")
    return k


def product(
    opcode: str,
    a: LinearLayout,
    b: LinearLayout,
    acc: LinearLayout,
    elems: Sequence[str],
    attrs: str,
) -> Kernel:
    """z = x @ y + z by `mma` or `dot`, operands in these layouts; `elems`: types of x, y, z."""
    ea, eb, ec = elems
    k = Kernel([("x", f"*{ea}"), ("y", f"*{eb}"), ("z", f"*{ec}")], acc.size("warp"))
    x, y, z = k.load("x", ea, a), k.load("y", eb, b), k.load("z", ec, acc)
    out = k.op(tile(acc.shape, ec, acc), f"{opcode} {x}, {y}, {z} {{{attrs}}}")
    k.store("z", ec, acc, out)
    return k
