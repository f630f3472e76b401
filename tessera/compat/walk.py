"""Shows tile IR as MLIR, which TorchInductor walks to learn which arguments a user's kernel reads and writes.

`walk` calls a function on every op, inner ops before the op around them. Ops have the names of Triton's dialect where
there is a counterpart, `tessera.<opcode>` otherwise. Every region has one block here, so a region and its block share
their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.ir import Block, Module, Op, Value, print_module

NAMES = {
    "func": "tt.func", "return": "tt.return", "call": "tt.call", "for": "scf.for", "if": "scf.if", "while": "scf.while",
    "condition": "scf.condition", "load": "tt.load", "store": "tt.store", "atomic_rmw": "tt.atomic_rmw",
    "atomic_cas": "tt.atomic_cas", "addptr": "tt.addptr", "reduce": "tt.reduce", "scan": "tt.scan",
    "make_descriptor": "tt.make_tensor_descriptor", "descriptor_load": "tt.descriptor_load",
    "descriptor_gather": "tt.descriptor_load", "descriptor_store": "tt.descriptor_store",
    "descriptor_scatter": "tt.descriptor_store", "inline_asm": "tt.elementwise_inline_asm",
    "volatile_asm": "tt.elementwise_inline_asm",
}  # fmt: skip
YIELDS = {"reduce": "tt.reduce.return", "scan": "tt.scan.return"}


class WalkedValue:
    """A value, known by its number."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def id(self) -> int:
        return id(self.value)


class WalkedBlock:
    """A block, and the region that holds nothing else."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def id(self) -> int:
        return id(self.block)

    def get_parent(self) -> WalkedBlock:
        return self

    def get_num_arguments(self) -> int:
        return len(self.block.args)

    def get_argument(self, i: int) -> WalkedValue:
        return WalkedValue(self.block.args[i])


class WalkedOp:
    """An op with its operands, results and regions by position."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def get_name(self) -> str:
        if self.op.opcode == "yield":
            outer = self.op.parent_op()
            return YIELDS.get("" if outer is None else outer.opcode, "scf.yield")
        return NAMES.get(self.op.opcode, f"tessera.{self.op.opcode}")

    def get_num_operands(self) -> int:
        # What is written through a descriptor is what its base points to, not its extents and strides.
        return 1 if self.op.opcode == "make_descriptor" else len(self.op.operands)

    def get_operand(self, i: int) -> WalkedValue:
        return WalkedValue(self.op.operands[i])

    def get_num_results(self) -> int:
        return len(self.op.results)

    def get_result(self, i: int) -> WalkedValue:
        return WalkedValue(self.op.results[i])

    def get_num_regions(self) -> int:
        return len(self.op.regions)

    def get_region(self, i: int) -> WalkedBlock:
        return WalkedBlock(self.op.regions[i])

    def get_block(self) -> WalkedBlock | None:
        """The block around the op; None for a function."""
        block = self.op.parent
        return None if block is None or self.op.opcode == "func" else WalkedBlock(block)

    def get_str_attr(self, name: str) -> str | None:
        return self._attribute("name" if name == "sym_name" else name)

    def get_flat_symbol_ref_attr(self, name: str) -> str | None:
        return self._attribute(name)

    def get_bool_attr(self, name: str) -> bool | None:
        return self.op.opcode == "inline_asm" if name == "pure" else self._attribute(name)

    def get_int_attr(self, name: str) -> int | None:
        return self._attribute(name)

    def _attribute(self, name: str) -> Any:
        return self.op.attrs.get(name)


class WalkedModule:
    """A module whose ops can be visited; the kernel comes before the functions that it calls."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def verify(self) -> bool:
        return True  # the front end's product was verified when it was made

    def walk(self, visit: Callable[[WalkedOp], object]) -> None:
        """Call `visit` on every op, inner ones first."""
        for function in sorted(self.module.body, key=lambda f: not f.attrs.get("kernel", True)):
            _walk(function, visit)

    def __str__(self) -> str:
        return print_module(self.module)


def _walk(op: Op, visit: Callable[[WalkedOp], object]) -> None:
    for block in op.regions:
        for inner in block:
            _walk(inner, visit)
    visit(WalkedOp(op))
