"""Says where the ops of a graph come from: which ATen operation, at which line of the program."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import re

from torch.fx import Node

from tessera.errors import Loc

FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def origin_of(node: Node) -> Loc:
    """The operation as the location's function: the one that eager has, where torch took it apart."""
    name = str(node.meta.get("original_aten") or node.target).removesuffix(".default")
    trace: str = node.meta.get("stack_trace") or ""
    frame = FRAME.match(trace, max(0, trace.rfind('File "')))
    return Loc(*(frame[1], int(frame[2])) if frame else ("<torch>", 0), function=name)
