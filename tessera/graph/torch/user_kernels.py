"""Runs kernels of the program itself, which a compiled function launches, between those of its graph.

Dynamo knows a kernel as Triton's (`import tessera.compat`: tessera's are), and `triton_op` shows it what an operation
launches. AOTAutograd has the launch return what it writes instead, for each written argument a tensor of its own:

    %out = triton_kernel_wrapper_functional(kernel_idx=0, grid=[(n // 128, 1, 1)], kwargs={x: %x, y: %y, n: %n},
                                            tensors_to_clone=["y"], ...)

which becomes an extern. Written arguments are copied before the launch, but for tensors that nobody has written before.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from tessera.graph.torch.host import moved
from tessera.graph.torch.types import NotLowered, sizes_of

REASON = "an operation of the program"
EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")


def is_user_kernel(target: Any) -> bool:
    return target is triton_kernel_wrapper_functional


@dataclass
class UserKernel:
    """The launch of a kernel as a function of its grids, one for each config of an autotuned kernel, and of arguments
    by name. `name`: of the kernel; `written`: names of the arguments that it changes, in the order of the results;
    `new`: those of them that are given as shape, strides, type and device of a tensor to make."""

    name: str
    written: tuple[str, ...]
    new: frozenset[str]
    launch: Callable[[Sequence[Any], dict[str, Any]], None]

    def __call__(self, grids: Sequence[Any], /, **given: Any) -> tuple[torch.Tensor, ...]:
        for name in self.written:
            given[name] = (
                made(*given[name]) if name in self.new else moved(given[name], given[name].device)
            )
        self.launch([tuple(grid) for grid in grids], given)
        return tuple(given[name] for name in self.written)


def made(shape: Any, strides: Any, kind: Any, device: Any) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device=device)


def user_kernel(node: Node) -> tuple[UserKernel, dict[str, Any]]:
    """What launches a kernel, and its arguments by name. NotLowered for descriptors of sizes that are not known."""
    given: Any = node.kwargs
    about = given["tma_descriptor_metadata"]
    if any(isinstance(x, Node) for x in tree_leaves(about)):
        raise NotLowered("a kernel of the program takes descriptors of symbolic sizes")
    kernel = kernel_side_table.get_kernel(given["kernel_idx"])
    several = about or len(given["grid"]) > 1
    launch = by_torch(given) if several else directly(kernel, given["constant_args_idx"])
    arguments = dict(given["kwargs"])
    written = tuple(node.meta["val"])
    new = frozenset(name for name in written if is_new(arguments[name]))
    for name in new:
        fake = arguments[name].meta["val"]
        layout = sizes_of(fake.shape), sizes_of(fake.stride())
        arguments[name] = [*layout, fake.dtype, fake.device]
    return UserKernel(kernel_name(kernel), written, new, launch), arguments


def directly(kernel: Any, constants: int) -> Callable[[Sequence[Any], dict[str, Any]], None]:
    """The launch of a kernel that has one grid. By position as far as that goes: hooks of tuned kernels expect it."""
    more = kernel_side_table.get_constant_args(constants)

    def launch(grids: Sequence[Any], named: dict[str, Any]) -> None:
        every = {**named, **more}
        first = list(takewhile(every.__contains__, kernel.arg_names))
        kernel[grids[0]](*[every.pop(name) for name in first], **every)

    return launch


def by_torch(given: Mapping[str, Any]) -> Callable[[Sequence[Any], dict[str, Any]], None]:
    """The launch by torch, which makes descriptors, and finds the grid of the config that tuning chose."""
    same = ("kernel_idx", "constant_args_idx", "tma_descriptor_metadata")
    fixed = {name: given[name] for name in same}
    return lambda grids, named: triton_kernel_wrapper_mutation(
        grid=list(grids), kwargs=named, **fixed
    )


def is_new(value: Any) -> bool:
    """Whether a tensor is memory that nobody has written."""
    target = getattr(value, "target", None)
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return target._schema.name.removeprefix("aten::") in EMPTY


def kernel_name(kernel: Any) -> str:
    """The name of the function that was decorated; those that tune a kernel hold it as `fn`."""
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return kernel.__name__
