"""Adds the bias of a convolution in a loop, where the library would add it by a kernel of its own.

%y = graph.extern [%x, %w, %b] {target='aten.convolution.default', …}
→   %t = graph.extern [%x, %w] {target='aten.convolution.default', …}
    %y = graph.loop (n, c, h, w) { load %t [n, c, h, w] + load %b [c] }

Torch calls cuDNN without the bias and then adds it to what is stored, which reads and writes the result once more. The
loop becomes a part of what reads the result, and rounds as torch does. Where nobody else does anything with the result
there is one launch, as before.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.dtypes import float32
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import ExternOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.convolutions import FORWARD
from tessera.ir import Module, Value, pass_
from tessera.ir.applications import apply

WEIGHT, BIAS = 1, 2  # the arguments


@pass_("graph-add-biases")
def add_biases(module: Module) -> None:
    """Add biases of convolutions in loops, on devices whose library adds them apart."""
    for function in module.functions:
        for op in list(function.regions[0]):
            if isinstance(op, ExternOp) and _adds_apart(op) and apply("graph-add-biases", op):
                _add(op)


def _adds_apart(op: ExternOp) -> bool:
    if op.target != FORWARD or not isinstance(op.arguments[BIAS], Place):
        return False
    t: TensorType = op.results[0].type
    bias = _operand(op, BIAS)
    floats: bool = t.elem.is_floating() and bias.type.elem == t.elem
    return floats and cost.machine_of(t.device).biases_apart


def _operand(op: ExternOp, argument: int) -> Value:
    place: Place = op.arguments[argument]
    return op.args[place.index]


def _add(op: ExternOp) -> None:
    place: Place = op.arguments[BIAS]
    bias, weight = _operand(op, BIAS), _operand(op, WEIGHT)
    t: TensorType = op.results[0].type
    inside = float32 if t.elem.bits < 32 else t.elem
    g = GraphBuilder.before(op, t.device)
    arguments = [_without(a, place) for a in op.arguments]
    operands = [v for k, v in enumerate(op.args) if k != place.index]
    channel: int = t.rank - weight.type.rank + 1  # a batch may be one image alone
    (bare,) = g.extern(op.target, operands, arguments, [t], dict(op.keywords), pure=op.pure)

    def element(*at: Value) -> Value:
        x, y = g.load(bare, *at), g.load(bias, at[channel])
        return g.cast(g.add(g.cast(x, inside), g.cast(y, inside)), t.elem, contract=True)

    made = g.loop(t.shape, element)
    made.type = t
    op.replace_by([made])


def _without(argument: object, gone: Place) -> object:
    if not isinstance(argument, Place):
        return argument
    if argument == gone:
        return None
    return replace(argument, index=argument.index - (argument.index > gone.index))
