"""Computes functions of the tile language inside of graphs: their ops are copied to where a rule calls them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from tessera.dtypes import dtype
from tessera.frontend.flatten import flatten
from tessera.frontend.frontend import Frame, FrontEnd
from tessera.graph.ir.scalars import Scalar
from tessera.ir import Block, Module
from tessera.language.callable import JITCallable
from tessera.language.extra import libdevice
from tessera.ops import YieldOp


class _NoLaunch(NamedTuple):
    """The launch options that the front end asks for; a function of scalars depends on no other."""

    debug: bool = False
    sanitize_overflow: bool = False
    backend_name: str = "graph"
    target: Any = None


def library(name: str, *operands: Scalar) -> Scalar:
    """A function of `tl.extra.libdevice` of scalars: `library("erfc", x)`."""
    return call(getattr(libdevice, name), operands)


def call(function: JITCallable, operands: Sequence[Scalar]) -> Scalar:
    """What a function gives that computes one number of numbers, without control flow at run time."""
    body = _lowered(function, tuple(x.type for x in operands))
    builder = operands[0].builder
    found = dict(zip(body.args, (x.value for x in operands), strict=True))
    for op in body:
        if isinstance(op, YieldOp):
            return Scalar(found[op.operands[0]], builder)
        found.update(zip(op.results, builder.insert(op.clone(found)).results, strict=True))
    raise AssertionError("the block of a function ends in a yield")


@cache
def _lowered(function: JITCallable, types: tuple[dtype, ...]) -> Block:
    """The function's ops, as a block with an argument for each operand that yields the result."""
    body = Block(list(types), names=function.arg_names)
    front_end = FrontEnd(Module(), _NoLaunch())
    names = dict(zip(function.arg_names, map(front_end.tensor, body.args), strict=True))
    front_end.frame = Frame(function, names, None, None)
    front_end.frame.is_kernel = False  # what it returns is used
    with front_end.builder.at(body):
        outcome = front_end.run(front_end.frame.source.node.body)
        assert outcome is not None
        front_end.builder.insert(YieldOp(flatten(outcome.value)))
    return body
