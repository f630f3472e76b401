"""Which order of elements convolutions and the loops between them have, and when that pays."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.dtypes import bfloat16, float32, float64
from tessera.graph.index import IndexMap, dim, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.convolutions import BACKWARD, FORWARD, convolution_of, is_channels_last
from tessera.graph.passes.layouts import FREE, NAME, NOTE, choose_layouts
from tessera.ir import Module, Value, parse_module, print_module, verify
from tessera.ir.applications import Session

GPU = "cuda:0"


def settings(k: int, groups: int = 1) -> list[Any]:
    return [(1, 1), (k // 2, k // 2), (1, 1), False, (0, 0), groups]


class Net:
    """A chain of convolutions, which a test ends with `chosen`."""

    def __init__(self, elem: Any = float32, device: str = "cpu"):
        self.g = GraphBuilder("net", device)
        self.elem, self.device = elem, device

    def tensor(self, *shape: Any) -> TensorType:
        return TensorType(shape, self.elem, None, self.device)

    def image(self, *shape: Any) -> Value:
        return self.g.input(f"x{len(self.g.block.args)}", self.tensor(*shape))

    def convolve(self, x: Value, made: int, k: int = 3, groups: int = 1) -> Value:
        n, c, *rest = x.type.shape
        w = self.image(made, c // groups, k, k)
        arguments = [Place(0), Place(1), None, *settings(k, groups)]
        return self.g.extern(FORWARD, [x, w], arguments, [self.tensor(n, made, *rest)])[0]

    def gradients(self, grad: Value, x: Value, k: int = 3) -> list[Value]:
        w = self.tensor(grad.type.shape[1], x.type.shape[1], k, k)
        operands = [grad, x, self.image(*w.shape)]
        arguments = [*map(Place, range(3)), None, *settings(k), (True, True, False)]
        return self.g.extern(BACKWARD, operands, arguments, [x.type, w])

    def absolute(self, x: Value) -> Value:
        return self.g.loop(x.type.shape, lambda *i: self.g.unary("abs", self.g.load(x, *i)))

    def chosen(self, *outputs: Value, free: tuple[int, ...] | None = None) -> Module:
        self.g.output(*outputs)
        module = self.g.finish()
        if free is not None:
            module.attrs[FREE] = free
        choose_layouts(module)
        verify(module)
        assert print_module(parse_module(print_module(module))) == print_module(module)
        return module


def is_chosen(module: Module) -> bool:
    return module.attrs[NOTE].startswith("channels last")


def chain(net: Net, *shape: int, channels: tuple[int, ...] = (32, 32), **how: Any) -> Value:
    x = net.image(*shape)
    for made in channels:
        x = net.absolute(net.convolve(x, made, **how))
    return x


def loops(module: Module) -> list[LoopOp]:
    return [op for op in module.functions[0].regions[0] if isinstance(op, LoopOp)]


# --- the rewrite ----------------------------------------------------------------------------------------------------
def test_loops_between_convolutions_copy_nothing():
    net = Net()
    out = chain(net, 4, 32, 16, 16, channels=(32, 32, 32), k=1)
    module = net.chosen(out)
    assert is_chosen(module)
    # One copies the image; of the others each computes, the last one for the caller.
    assert len(loops(module)) == 4
    assert [is_channels_last(loop.results[0].type) for loop in loops(module)] == [True] * 3 + [
        False
    ]


def test_an_image_that_has_channels_last_is_read_as_it_is():
    net = Net()
    t = TensorType((4, 32, 16, 16), float32, (8192, 1, 512, 32))
    x = net.g.input("x", t)
    module = net.chosen(net.absolute(net.convolve(x, 32, k=1)))
    (loop,) = loops(module)
    assert is_chosen(module) and not is_channels_last(loop.results[0].type)


def test_what_others_are_told_keeps_its_strides():
    """A loop's result that is returned, or goes to another function, is copied for a convolution; one of a
    convolution is copied for them."""
    net = Net()
    first = chain(net, 4, 32, 16, 16, k=1)
    other = net.g.extern("copy", [first], [Place(0)], [first.type])[0]
    last = net.convolve(first, 32, k=1)
    view = IndexMap(4, [dim(0), dim(1), dim(3), dim(2)])
    turned = net.g.view(last, view, TensorType(last.type.shape, float32, (8192, 256, 1, 16)))
    module = net.chosen(first, other, turned)
    assert is_chosen(module)
    copies = [loop for loop in loops(module) if len(list(loop.body)) == 2]  # a load and a yield
    assert [is_channels_last(c.results[0].type) for c in copies] == [True, True, False]


def test_saved_tensors_are_in_the_order_of_convolutions():
    net = Net()
    middle = chain(net, 4, 32, 16, 16, channels=(32,), k=1)
    out = net.absolute(net.convolve(middle, 32, k=1))
    module = net.chosen(out, middle, free=(1,))
    returns = module.functions[0].attrs["returns"]
    assert [is_channels_last(t) for t in returns] == [False, True]
    assert len(loops(module)) == 3


def test_saved_tensors_of_unknown_rows_keep_their_strides():
    """torch is told strides as numbers; the number of images is in none of them."""
    found: list[bool] = []
    for shape in ((sym("s0"), 32, 16, 16), (4, 32, sym("s0"), 16)):
        net = Net()
        middle = chain(net, *shape, channels=(32,), k=1)  # type: ignore[arg-type]
        out = net.absolute(net.convolve(middle, 32, k=1))
        module = net.chosen(out, middle, free=(1,))
        found.append(is_channels_last(module.functions[0].attrs["returns"][1]))
    assert found == [True, False]


def test_gradients():
    net = Net()
    grad, x = net.image(4, 32, 16, 16), net.image(4, 32, 16, 16)
    grad = net.absolute(grad)
    for _ in range(3):
        given, of_weight = net.gradients(grad, x)
        net.g.output(of_weight)
        grad = net.absolute(given)
    module = net.chosen(grad)
    assert is_chosen(module)
    found = [c for op in module.functions[0].regions[0] if (c := convolution_of(op)) is not None]
    assert all(is_channels_last(v.type) for c in found for v in (*c.tensors, *c.made, c.weight))
    assert not any(map(is_channels_last, module.functions[0].attrs["returns"]))


def test_a_loop_that_reads_more_rows_stays_row_major():
    net = Net()
    rows = [net.image(4, 32, 16, 16) for _ in range(3)]
    x = net.convolve(net.convolve(rows[0], 32, k=1), 32, k=1)
    y = net.convolve(x, 32, k=1)

    def body(*i: Value) -> Value:
        found = net.g.load(y, *i)
        for v in rows:
            found = net.g.add(found, net.g.load(v, *i))
        return found

    z = net.g.loop(y.type.shape, body)
    total = net.g.loop([], lambda: net.g.reduce("sum", z.type.shape, lambda *i: net.g.load(z, *i)))
    module = net.chosen(total)
    assert is_chosen(module) and z.type.strides is None


def test_a_copy_is_saved_in_place_of_a_weight():
    """So the backward graph does not copy it again."""
    net = Net()
    out = chain(net, 4, 32, 16, 16, channels=(32, 32, 32))
    x, weight = net.g.block.args[:2]
    module = net.chosen(out, weight, x, weight, free=(1, 2))
    assert is_chosen(module)
    returns = module.functions[0].attrs["returns"]
    assert [is_channels_last(t) for t in returns] == [False, True, True, False]
    returned = module.functions[0].regions[0].terminator.operands
    assert returned[1].op is not None and returned[3] is weight


def test_no_copy_is_saved_of_a_large_weight():
    """It is there anyhow: a MiB more would be held until the gradient is computed."""
    net = Net()
    out = chain(net, 64, 512, 16, 16, channels=(512, 512))
    weight = net.g.block.args[1]
    module = net.chosen(out, weight, free=(1,))
    assert is_chosen(module)
    assert module.functions[0].regions[0].terminator.operands[1] is weight


# --- whether it pays ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("elem", "place", "wanted"),
    [
        (float32, "cpu", True), (bfloat16, "cpu", True), (float64, "cpu", False),
        (float32, GPU, False), (bfloat16, GPU, True),
    ],
)  # fmt: skip
def test_types(elem: Any, place: str, wanted: bool):
    net = Net(elem, place)
    module = net.chosen(chain(net, 8, 64, 32, 32, channels=(64, 64, 64)))
    assert is_chosen(module) == wanted
    if not wanted:
        assert elem.short in module.attrs[NOTE]


@pytest.mark.parametrize("groups", [1, 8, 64])
def test_groups_of_several_channels_are_slow_on_a_gpu(groups: int):
    for device in ("cpu", GPU):
        net = Net(bfloat16, device)
        out = chain(net, 8, 64, 32, 32, channels=(64, 64, 64), groups=groups)
        assert is_chosen(net.chosen(out)) == (groups != 8 or device == "cpu")


def test_narrowing_convolutions_are_slow_to_train_on_a_gpu():
    for free, wanted in ((None, True), ((), False)):
        net = Net(bfloat16, GPU)
        out = chain(net, 8, 256, 32, 32, channels=(64, 256, 64, 256, 64))
        assert is_chosen(net.chosen(out, free=free)) == (wanted or free is None)


def test_large_weights_of_small_images_are_not_moved():
    net = Net()
    module = net.chosen(chain(net, 1, 512, 7, 7, channels=(512, 512, 512)))
    assert not is_chosen(module) and "bytes" in module.attrs[NOTE]


def test_off():
    net = Net()
    with Session("graph", frozenset({NAME})):
        module = net.chosen(chain(net, 4, 32, 16, 16))
    assert module.attrs[NOTE] == f"row-major: {NAME} is off"


def test_loops_go_along_what_lies_side_by_side():
    net = Net()
    loop = net.absolute(net.image(4, 32, 16, 16)).op
    assert isinstance(loop, LoopOp)
    assert cost.goes_along(loop, [0, 3]) and not cost.goes_along(loop, [1])
    loop.results[0].type = TensorType((4, 32, 16, 16), float32, (8192, 1, 512, 32))
    assert cost.goes_along(loop, [1]) and not cost.goes_along(loop, [0, 3])


@pytest.mark.parametrize(
    ("channels", "groups", "chosen"), [(8, 1, True), (4, 1, False), (12, 12, True)]
)
def test_channels_that_a_gpus_library_pads_save_nothing(channels: int, groups: int, chosen: bool):
    net = Net(bfloat16, GPU)
    made = [channels] * 3
    module = net.chosen(chain(net, 16, channels, 64, 64, channels=(*made,), groups=groups))
    assert is_chosen(module) == chosen


def test_no_images_are_no_reason_to_reorder_any():
    net = Net()
    assert not is_chosen(net.chosen(chain(net, 0, 32, 16, 16)))
