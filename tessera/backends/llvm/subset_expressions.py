"""Compiles the expressions of the native subset (`subset`), and writes the code of one function."""

from __future__ import annotations

import ast
import struct
import typing
from collections.abc import Mapping
from typing import Any, NoReturn

from tessera.backends.llvm.subset import GlobalVariable, Scalar
from tessera.backends.llvm.subset_intrinsics import EMITTERS
from tessera.backends.llvm.subset_types import (
    ANY,
    BOOL,
    F64,
    I64,
    ArrayOf,
    Constant,
    Function,
    Operand,
    PointerTo,
    SubsetError,
    Type,
    Value,
    accepts,
    definition,
    evaluate,
    layout,
    linkage,
    llvm_name,
    name_of,
    place_of,
    signature,
    type_of,
)

_ARITHMETIC = {
    ast.Add: ("add", "add", "fadd"), ast.Sub: ("sub", "sub", "fsub"), ast.Mult: ("mul", "mul", "fmul"),
    ast.Div: (None, None, "fdiv"), ast.FloorDiv: (None, "udiv", None), ast.Mod: (None, "urem", None),
    ast.BitAnd: ("and", "and", None), ast.BitOr: ("or", "or", None), ast.BitXor: ("xor", "xor", None),
    ast.LShift: ("shl", "shl", None), ast.RShift: ("ashr", "lshr", None),
}  # fmt: skip
_COMPARISONS = {
    ast.Eq: ("eq", "eq", "oeq"), ast.NotEq: ("ne", "ne", "une"), ast.Is: ("eq", "eq", None),
    ast.IsNot: ("ne", "ne", None), ast.Lt: ("slt", "ult", "olt"), ast.LtE: ("sle", "ule", "ole"),
    ast.Gt: ("sgt", "ugt", "ogt"), ast.GtE: ("sge", "uge", "oge"),
}  # fmt: skip


def _column(t: Type | None) -> int:
    """Return the column of the tables above: 0 for signed integers, 1 for other integers and addresses, 2 for floating
    point."""
    return 1 if not isinstance(t, Scalar) else 2 if t.signed is None else 1 - t.signed


class Module:
    def __init__(self) -> None:
        self.symbols: dict[str, Any] = {}
        self.waiting: list[Any] = []
        self.variables: dict[GlobalVariable, str] = {}
        self.lines: dict[str, None] = {}  # in order, each once

    def function(self, f: Any) -> Value:
        """Return the address of a function, which is compiled later."""
        node, how = definition(f), linkage(f)
        place = place_of(f, node)
        if how is None:
            raise SubsetError(place, f"{f.__name__} is neither native nor external")
        kind = signature(node, f.__globals__, place)
        if self.symbols.setdefault(how.symbol, f) is not f:
            raise SubsetError(place, f"there are two functions {how.symbol}")
        if how.external:
            params = [*map(llvm_name, kind.params), *["..."] * kind.variadic]
            self.declare(f"{llvm_name(kind.result)} @{how.symbol}({', '.join(params)})")
        elif f not in self.waiting:
            self.waiting.append(f)
        return Value(kind, f"@{how.symbol}")

    def declare(self, text: str) -> None:
        self.lines[f"declare {text}"] = None

    def variable(self, name: str, found: GlobalVariable) -> Value:
        kind = ANY if found.kind is object else found.kind
        symbol = self.variables.setdefault(found, f"@{name}.{len(self.variables)}")
        zero = "null" if llvm_name(kind) == "ptr" else "0"
        self.lines[f"{symbol} = internal global {llvm_name(kind)} {zero}"] = None
        return Value(PointerTo(kind), symbol)

    def string(self, data: bytes) -> str:
        name = f"@text.{data.hex()}"
        escaped = "".join(f"\\{b:02x}" for b in data + b"\0")
        kind = f"[{len(data) + 1} x i8]"
        self.lines[f'{name} = private unnamed_addr constant {kind} c"{escaped}"'] = None
        return name


class Expressions:
    """Compiles the expressions of one function. `place` follows the statements, for errors."""

    def __init__(self, module: Module, function: Any) -> None:
        self.module, self.function = module, function
        self.names: Mapping[str, Any] = function.__globals__
        self.node = definition(function)
        self.place = place_of(function, self.node)
        self.kind = signature(self.node, self.names, self.place)
        self.variables: dict[str, Value] = {}  # addresses; their types are those of the variables
        self.slots: list[str] = []
        self.lines: list[str] = []
        self.loops: list[tuple[str, str]] = []  # where `continue` and `break` go
        self.targets: set[str] = set()
        self.numbers = 0
        self.here, self.ended = "start", False  # the block; whether control has left it

    # --- writing ---
    def fail(self, message: str) -> NoReturn:
        raise SubsetError(self.place, message)

    def emit(self, line: str) -> None:
        if not self.ended:
            self.lines.append(f"  {line}")
        self.ended = self.ended or line.startswith("ret")

    def op(self, text: str, t: Type | None) -> Value:
        self.numbers += 1
        self.emit(f"%v{self.numbers} = {text}")
        return Value(t, f"%v{self.numbers}")

    def new_label(self) -> str:
        self.numbers += 1
        return f"b{self.numbers}"

    def jump(self, *labels: str, condition: str = "") -> None:
        """Branch; of two labels, to the first one if the condition holds."""
        if not self.ended:
            self.emit(f"br {condition}{', '.join(f'label %{name}' for name in labels)}")
            self.targets.update(labels)
        self.ended = True

    def label(self, name: str) -> None:
        """Begin a block, which control falls through to. Code that nothing branches to is not written."""
        self.jump(name)
        if name in self.targets:
            self.lines.append(f"{name}:")
            self.here, self.ended = name, False

    def slot(self, kind: str, align: int = 8) -> str:
        """Return the address of memory on the stack."""
        self.numbers += 1
        self.slots.append(f"  %s{self.numbers} = alloca {kind}, align {align}")
        return f"%s{self.numbers}"

    def assign(self, name: str, value: Value) -> None:
        if value.type is None:
            self.fail(f"{name} gets no value")
        if name not in self.variables:
            self.variables[name] = Value(value.type, self.slot(llvm_name(value.type)))
        self.store(self.variables[name], value)

    def load(self, where: Value) -> Value:
        """Load; here and in `store`, `where` is an address, and its type is that of the value there."""
        if isinstance(where.type, ArrayOf):
            return Value(PointerTo(where.type.elem), where.text)
        return self.op(f"load {llvm_name(where.type)}, ptr {where.text}", where.type)

    def store(self, where: Value, value: Operand) -> None:
        self.emit(f"store {self.operand(value, where.type)}, ptr {where.text}")

    # --- conditions ---
    def branch(self, value: Operand, yes: str, no: str) -> None:
        self.jump(yes, no, condition=f"{self.operand(value, BOOL)}, ")

    def condition(self, node: ast.expr, yes: str, no: str) -> None:
        """Branch on a condition."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.condition(node.operand, no, yes)
        elif isinstance(node, ast.BoolOp):
            both = isinstance(node.op, ast.And)
            for part in node.values[:-1]:
                further = self.new_label()
                self.condition(part, *((further, no) if both else (yes, further)))
                self.label(further)
            self.condition(node.values[-1], yes, no)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            self.jump(yes if node.value else no)
        else:
            self.branch(self.expression(node), yes, no)

    def joined(self, node: ast.expr, yes: Any, no: Any) -> Value:
        """Return the value of `yes()` or `no()`, by a condition."""
        then, other, end = self.new_label(), self.new_label(), self.new_label()
        self.condition(node, then, other)
        self.label(then)
        first = yes()
        left = self.here
        self.jump(end)
        self.label(other)
        second = no()
        right = self.here
        self.label(end)
        a, b = self.unified(first, second)
        return self.op(f"phi {llvm_name(a.type)} [{a.text}, %{left}], [{b.text}, %{right}]", a.type)

    # --- expressions ---
    def expression(self, node: ast.expr) -> Operand:
        visit = getattr(self, f"_{type(node).__name__}", None)
        if visit is None or isinstance(node, ast.stmt):
            self.fail(f"{ast.unparse(node)} is no expression of the native subset")
        return visit(node)

    def value(self, node: ast.expr) -> Value:
        return self.typed(self.expression(node))

    def _Constant(self, node: ast.Constant) -> Operand:
        return Constant(node.value)

    def _Name(self, node: ast.Name) -> Operand:
        if node.id in self.variables:
            return self.load(self.variables[node.id])
        return self.of_module(node)

    def of_module(self, node: ast.expr) -> Operand:
        """Return a constant, function or variable of the module."""
        found = evaluate(node, self.names)
        if isinstance(found, int | float | bytes):
            return Constant(found)
        if linkage(found) is not None:
            return self.module.function(found)
        if isinstance(found, GlobalVariable) and isinstance(node, ast.Name):
            return self.module.variable(node.id, found)
        return self.fail(f"{ast.unparse(node)} is not known")

    def is_local(self, node: ast.expr) -> bool:
        """Whether an expression begins with a local variable, or with anything else that is computed."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return not isinstance(node, ast.Name) or node.id in self.variables

    def _Attribute(self, node: ast.Attribute) -> Operand:
        return self.load(self.place_for(node)) if self.is_local(node) else self.of_module(node)

    def _Subscript(self, node: ast.Subscript) -> Operand:
        return self.load(self.place_for(node))

    def place_for(self, node: ast.expr) -> Value:
        """Return the address of a variable, field or element, with the type of the value there."""
        if isinstance(node, ast.Name) and node.id in self.variables:
            return self.variables[node.id]
        if isinstance(node, ast.Attribute):
            base = self.value(node.value)
            fields = layout(base.type).fields if isinstance(base.type, type) else {}
            if node.attr not in fields:
                self.fail(f"{name_of(base.type)} has no field {node.attr}")
            at, t = fields[node.attr]
            return Value(t, self.op(f"getelementptr i8, ptr {base.text}, i64 {at}", t).text)
        if isinstance(node, ast.Subscript):
            found = self.binary(ast.Add, self.value(node.value), self.expression(node.slice))
            if isinstance(found, Value) and isinstance(found.type, PointerTo):
                return Value(found.type.elem, found.text)
        return self.fail(f"{ast.unparse(node)} is no place in memory")

    def _NamedExpr(self, node: ast.NamedExpr) -> Operand:
        value = self.value(node.value)
        self.assign(node.target.id, value)
        return value

    def _IfExp(self, node: ast.IfExp) -> Operand:
        return self.joined(
            node.test, lambda: self.expression(node.body), lambda: self.expression(node.orelse)
        )

    def _BoolOp(self, node: ast.BoolOp) -> Operand:
        return self.joined(node, lambda: Constant(True), lambda: Constant(False))

    def _UnaryOp(self, node: ast.UnaryOp) -> Operand:
        given = self.expression(node.operand)
        if isinstance(given, Constant):
            return Constant(evaluate(node, self.names))
        if isinstance(node.op, ast.Not):
            return self.op(f"xor {self.operand(given, BOOL)}, true", BOOL)
        if isinstance(node.op, ast.Invert):
            return self.binary(ast.BitXor, given, Constant(-1))
        zero = -0.0 if _column(given.type) == 2 else 0  # -0.0 - x is -x for x = 0, too
        return self.binary(ast.Sub, Constant(zero), given)

    def _BinOp(self, node: ast.BinOp) -> Operand:
        left, right = self.expression(node.left), self.expression(node.right)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(evaluate(node, self.names))
        return self.binary(type(node.op), left, right)

    def binary(self, op: type, left: Operand, right: Operand) -> Operand:
        if isinstance(left, Value) and isinstance(left.type, PointerTo) and op is ast.Add:
            if left.type.elem is None:
                self.fail("the elements of this address have no type")
            elem = llvm_name(left.type.elem)
            return self.op(f"getelementptr {elem}, ptr {left.text}, {self.index(right)}", left.type)
        a, b = self.unified(left, right)
        names = _ARITHMETIC.get(op)
        name = names[_column(a.type)] if names and isinstance(a.type, Scalar) else None
        if name is None:
            self.fail(f"there is no {op.__name__} of {name_of(a.type)}")
        return self.op(f"{name} {llvm_name(a.type)} {a.text}, {b.text}", a.type)

    def index(self, number: Operand) -> str:
        """Return the operand for a number of elements: i64 or u64."""
        value = self.typed(number)
        if llvm_name(value.type) != "i64":
            self.fail(f"an index is i64 or u64, not {name_of(value.type)}")
        return f"i64 {value.text}"

    def _Compare(self, node: ast.Compare) -> Operand:
        terms = [self.expression(x) for x in (node.left, *node.comparators)]
        found = [self.compared(type(op), a, b) for op, a, b in zip(node.ops, terms, terms[1:])]
        for other in found[1:]:
            found[0] = self.op(f"and i1 {found[0].text}, {other.text}", BOOL)
        return found[0]

    def compared(self, op: type, left: Operand, right: Operand) -> Value:
        a, b = self.unified(left, right)
        name = _COMPARISONS[op][_column(a.type)] if op in _COMPARISONS else None
        if name is None:
            self.fail(f"there is no {op.__name__} of {name_of(a.type)}")
        kind = "fcmp" if _column(a.type) == 2 else "icmp"
        return self.op(f"{kind} {name} {llvm_name(a.type)} {a.text}, {b.text}", BOOL)

    # --- calls ---
    def _Call(self, node: ast.Call) -> Operand:
        if node.keywords:
            self.fail("calls of the native subset name no arguments")
        known = None if self.is_local(node.func) else evaluate(node.func, self.names)
        if known is typing.cast:
            wanted = type_of(node.args[0], self.names, self.place)
            return self.cast(wanted, self.value(node.args[1]))
        if isinstance(known, Scalar):
            return self.number(self.expression(node.args[0]), known)
        if linkage(known) is None and known in EMITTERS:
            return EMITTERS[known](self, node.args)
        callee = self.value(node.func)
        if not isinstance(callee.type, Function):
            self.fail(f"{ast.unparse(node.func)} is no function")
        return self.call(callee.text, callee.type, [self.expression(a) for a in node.args])

    def call(self, callee: str, kind: Function, args: list[Operand]) -> Value:
        count = len(kind.params)
        if len(args) < count or (len(args) > count and not kind.variadic):
            self.fail(f"{callee} takes {count} arguments, not {len(args)}")
        given = [self.operand(a, t) for a, t in zip(args, kind.params)]
        given += [self.operand(a, None) for a in args[count:]]
        result = llvm_name(kind.result)
        if kind.variadic:
            result += f" ({', '.join([*map(llvm_name, kind.params), '...'])})"
        text = f"call {result} {callee}({', '.join(given)})"
        if kind.result is not None:
            return self.op(text, kind.result)
        self.emit(text)
        return Value(None, "")

    # --- types ---
    def cast(self, t: Type | None, value: Value) -> Value:
        """Convert an address, or a number that is one, to another type."""
        if llvm_name(t) != "ptr" or llvm_name(value.type) not in ("ptr", "i64"):
            self.fail(f"no cast makes {name_of(t)} of {name_of(value.type)}")
        if llvm_name(value.type) == "i64":
            return self.op(f"inttoptr i64 {value.text} to ptr", t)
        return Value(t, value.text)

    def number(self, given: Operand, t: Scalar) -> Value:
        """Convert a number to another type."""
        if isinstance(given, Constant):
            return self.converted(given, t)
        source = given.type
        if not isinstance(source, Scalar):
            return self.fail(f"{name_of(source)} is no number")
        if source.llvm == t.llvm:
            return Value(t, given.text)
        if source.signed is not None and t.signed is not None:
            wider = source.bytes < t.bytes or source == BOOL
            name = "trunc" if not wider else "sext" if source.signed else "zext"
        elif source.signed is None and t.signed is None:
            name = "fpext" if source.bytes < t.bytes else "fptrunc"
        else:
            return self.fail(f"there is no {t.name} of {source.name}")
        return self.op(f"{name} {source.llvm} {given.text} to {t.llvm}", t)

    def typed(self, given: Operand) -> Value:
        """Return a value; constants become bool, i64, f64 or an address."""
        if isinstance(given, Value):
            return given
        kinds: dict[str, Type] = {"bool": BOOL, "int": I64, "float": F64}
        return self.converted(given, kinds.get(type(given.value).__name__, ANY))

    def unified(self, left: Operand, right: Operand) -> tuple[Value, Value]:
        """Return two operands of one type."""
        if isinstance(left, Constant):
            known = isinstance(right, Value)
            left = self.converted(left, right.type) if known else self.typed(left)
        if isinstance(right, Constant):
            right = self.converted(right, left.type)
        if not (accepts(left.type, right.type) or accepts(right.type, left.type)):
            self.fail(f"{name_of(left.type)} and {name_of(right.type)} are different types")
        return left, right

    def operand(self, given: Operand, t: Type | None) -> str:
        """Return type and text; `t` None: of any type."""
        value = self.typed(given) if t is None else self.converted(given, t)
        return f"{llvm_name(value.type)} {value.text}"

    def converted(self, given: Operand, t: Type | None) -> Value:
        """Return a constant as a value of type `t`; other values must be of that type."""
        if isinstance(given, Value):
            if not accepts(t, given.type):
                self.fail(f"{name_of(given.type)} stands where {name_of(t)} is wanted")
            return Value(t, given.text)
        text = self.literal(given.value, t)
        if text is None:
            self.fail(f"{given.value!r} is no {name_of(t)}")
        return Value(t, text)

    def literal(self, x: Any, t: Type | None) -> str | None:
        if llvm_name(t) == "ptr":
            is_text = isinstance(x, bytes) and t == ANY
            return "null" if x is None else self.module.string(x) if is_text else None
        if not isinstance(t, Scalar) or isinstance(x, bool) != (t == BOOL):
            return None
        if t == BOOL:
            return str(x).lower()
        if t.signed is None and isinstance(x, int | float):
            rounded = struct.unpack("f", struct.pack("f", x))[0] if t.bytes == 4 else float(x)
            return f"0x{struct.pack('>d', rounded).hex()}"
        bits = 8 * t.bytes
        if not isinstance(x, int) or not -(1 << bits - 1) <= x < 1 << bits:
            return None
        return str(x - (1 << bits) if x >> bits - 1 > 0 else x)
