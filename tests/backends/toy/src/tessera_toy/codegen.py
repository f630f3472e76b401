"""Tile IR to Python source over NumPy, one statement an op.

A pointer is two variables: an array and the offsets into it.

    %4 = addptr %3, %c            p4, o4 = p3, o3 + vc
    %v = load %4, %m, %5          vv = np.where(vm, p4[np.where(vm, o4, 0)], v5)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.errors import CompilationError
from tessera.ir import Block, Module, Op, Value, elem_of, shape_of

Handler = Callable[["Writer", Any], None]
HANDLERS: dict[str, Handler] = {}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
FUNCTIONS = {
    "max": "np.maximum", "min": "np.minimum", "exp": "np.exp", "log": "np.log", "sqrt": "np.sqrt", "neg": "-",
    "abs": "np.abs",
}  # fmt: skip
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
DTYPES = {
    "fp16": "float16", "fp32": "float32", "fp64": "float64", "i1": "bool_", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip


def handles(*opcodes: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(opcodes, function))
        return function

    return register


def dtype_of(value: Value) -> str:
    short = elem_of(value.type).short
    if short not in DTYPES:
        raise CompilationError(f"the toy back end has no type {short}")
    return f"np.{DTYPES[short]}"


def is_pointer(value: Value) -> bool:
    return elem_of(value.type).short.startswith("*")


class Writer:
    """The lines of one function and the names of its values."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.numbers: dict[Value, int] = {}

    def name(self, value: Value, kind: str = "v") -> str:
        return f"{kind}{self.numbers.setdefault(value, len(self.numbers))}"

    def targets(self, value: Value) -> str:
        """The variables of a value: two for a pointer."""
        both = f"{self.name(value, 'p')}, {self.name(value, 'o')}"
        return both if is_pointer(value) else self.name(value)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def assign(self, op: Op, text: str) -> None:
        self.line(f"{self.name(op.result)} = {text}")

    def block(self, block: Block) -> None:
        for op in block:
            handler = HANDLERS.get(op.opcode)
            if handler is None:
                raise CompilationError(f"the toy back end has no {op.opcode!r}", loc=op.loc)
            handler(self, op)


def generate(module: Module) -> str:
    """Python source that defines the kernel as `NAME(program, grid, *arguments)`."""
    kernel = next(f for f in module.body if f.attrs["kernel"])
    writer, parameters = Writer(), []
    for value in kernel.regions[0].args:
        pointer = is_pointer(value)
        parameters.append(writer.name(value, "p" if pointer else "v"))
        if pointer:
            writer.line(f"{writer.name(value, 'o')} = np.int64(0)")
        else:
            writer.line(f"{parameters[-1]} = {dtype_of(value)}({parameters[-1]})")
    writer.block(kernel.regions[0])
    head = f"def {kernel.attrs['name']}({', '.join(['program', 'grid', *parameters])}):"
    return "\n".join(["import numpy as np", "", head, *writer.lines, ""])


@handles("const")
def const(w: Writer, op: Any) -> None:
    shape, kind = shape_of(op.result.type), dtype_of(op.result)
    value = repr(op.value) if op.value - op.value == 0 else f"float('{op.value}')"
    w.assign(op, f"np.full({shape}, {value}, {kind})" if shape else f"{kind}({value})")


@handles("program_id")
def program_id(w: Writer, op: Any) -> None:
    w.assign(op, f"np.int32(program[{op.axis}])")


@handles("num_programs")
def num_programs(w: Writer, op: Any) -> None:
    w.assign(op, f"np.int32(grid[{op.axis}])")


@handles("arange")
def arange(w: Writer, op: Any) -> None:
    w.assign(op, f"np.arange({op.start}, {op.end}, dtype=np.int32)")


@handles("splat", "broadcast")
def broadcast(w: Writer, op: Any) -> None:
    shape = shape_of(op.result.type)
    if is_pointer(op.x):
        of = f"{w.name(op.x, 'p')}, np.broadcast_to({w.name(op.x, 'o')}, {shape})"
        w.line(f"{w.targets(op.result)} = {of}")
    else:
        w.assign(op, f"np.broadcast_to({w.name(op.x)}, {shape})")


@handles("expand_dims")
def expand_dims(w: Writer, op: Any) -> None:
    if is_pointer(op.x):
        of = f"{w.name(op.x, 'p')}, np.expand_dims({w.name(op.x, 'o')}, {op.axis})"
        w.line(f"{w.targets(op.result)} = {of}")
    else:
        w.assign(op, f"np.expand_dims({w.name(op.x)}, {op.axis})")


@handles("addptr")
def addptr(w: Writer, op: Any) -> None:
    moved = f"{w.name(op.ptr, 'o')} + np.int64({w.name(op.offset)})"
    w.line(f"{w.targets(op.result)} = {w.name(op.ptr, 'p')}, {moved}")


@handles(*OPERATORS)
def operator(w: Writer, op: Op) -> None:
    a, b = map(w.name, op.operands)
    w.assign(op, f"{a} {OPERATORS[op.opcode]} {b}")


@handles(*FUNCTIONS)
def function(w: Writer, op: Op) -> None:
    w.assign(op, f"{FUNCTIONS[op.opcode]}({', '.join(map(w.name, op.operands))})")


@handles("div", "rem")
def divide(w: Writer, op: Op) -> None:
    a, b = map(w.name, op.operands)
    if elem_of(op.result.type).is_floating():
        w.assign(op, f"{a} / {b}" if op.opcode == "div" else f"np.fmod({a}, {b})")
    elif op.opcode == "rem":
        w.assign(op, f"np.fmod({a}, {b})")
    else:  # toward zero
        w.assign(op, f"({a} - np.fmod({a}, {b})) // {b}")


@handles("cmp")
def compare(w: Writer, op: Any) -> None:
    w.assign(op, f"{w.name(op.lhs)} {COMPARISONS[op.predicate]} {w.name(op.rhs)}")


@handles("select")
def select(w: Writer, op: Any) -> None:
    w.assign(op, f"np.where({', '.join(map(w.name, op.operands))})")


@handles("cast")
def cast(w: Writer, op: Any) -> None:
    w.assign(op, f"{dtype_of(op.result)}({w.name(op.x)})")


@handles("load")
def load(w: Writer, op: Any) -> None:
    array, offsets = w.name(op.ptr, "p"), w.name(op.ptr, "o")
    if op.mask is None:
        w.assign(op, f"{array}[{offsets}]")
        return
    mask = w.name(op.mask)
    other = f"{dtype_of(op.result)}(0)" if op.other is None else w.name(op.other)
    w.assign(op, f"np.where({mask}, {array}[np.where({mask}, {offsets}, 0)], {other})")


@handles("store")
def store(w: Writer, op: Any) -> None:
    array, offsets, value = w.name(op.ptr, "p"), w.name(op.ptr, "o"), w.name(op.value)
    if op.mask is None:
        w.line(f"{array}[{offsets}] = {value}")
    elif shape_of(op.mask.type):
        mask = w.name(op.mask)
        w.line(f"{array}[{offsets}[{mask}]] = {value}[{mask}]")
    else:
        w.line(f"if {w.name(op.mask)}: {array}[{offsets}] = {value}")


@handles("reduce")
def reduce(w: Writer, op: Any) -> None:
    """A combination of two operands in one op is a NumPy ufunc; any other is not for a toy."""
    ops = list(op.combine)
    ufuncs = {"add": "np.add", "mul": "np.multiply", "max": "np.maximum", "min": "np.minimum"}
    if len(op.inputs) != 1 or len(ops) != 2 or ops[0].opcode not in ufuncs:
        raise CompilationError("the toy back end reduces by add, mul, max and min only", loc=op.loc)
    kind = dtype_of(op.results[0])
    ufunc, tile = ufuncs[ops[0].opcode], w.name(op.inputs[0])
    w.line(f"{w.name(op.results[0])} = {ufunc}.reduce({tile}, axis={op.axis}, dtype={kind})")


@handles("for")
def for_(w: Writer, op: Any) -> None:
    for carried, init in zip(op.carried, op.inits, strict=True):
        w.line(f"{w.targets(carried)} = {w.targets(init)}")
    bounds = ", ".join(f"int({w.name(x)})" for x in (op.lb, op.ub, op.step))
    w.line(f"for i in range({bounds}):")
    w.depth += 1
    w.line(f"{w.name(op.induction)} = {dtype_of(op.induction)}(i)")
    *body, last = op.body
    for inner in body:
        handler = HANDLERS.get(inner.opcode)
        if handler is None:
            raise CompilationError(f"the toy back end has no {inner.opcode!r}", loc=inner.loc)
        handler(w, inner)
    left, right = (", ".join(map(w.targets, x)) for x in (op.carried, last.operands))
    if left:
        w.line(f"{left} = {right}")
    w.depth -= 1
    for result, carried in zip(op.results, op.carried, strict=True):
        w.line(f"{w.targets(result)} = {w.targets(carried)}")


@handles("return")
def return_(w: Writer, op: Op) -> None:
    w.line("return")
