"""Scalar arithmetic of one float type as LLVM IR, and functions of the module that are written at their first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.backends.elements.literals import float_literal
from tessera.backends.gpu.target import GpuTarget
from tessera.backends.gpu.writer import Writer
from tessera.dtypes import float32, float64
from tessera.errors import InternalError


class Maths:
    """Writes scalar arithmetic of one float type."""

    def __init__(self, w: Writer, target: GpuTarget, type: str) -> None:
        self.w, self.target, self.type = w, target, type
        self.elem = float64 if type == "double" else float32
        self.int = "i64" if type == "double" else "i32"
        self.suffix = "f64" if type == "double" else "f32"

    def const(self, value: float) -> str:
        return float_literal(value, self.elem)

    def op(self, name: str, a: str, b: str) -> str:
        return self.w.pure(f"{name} {self.type} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self.op("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.op("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.op("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """A quick quotient in fp32, a correctly rounded one in fp64."""
        return self.target.math(self.w, "div", self.type, [a, b]) or self.op("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.w.pure(f"fneg {self.type} {a}")

    def call(self, name: str, *args: str) -> str:
        typed = [f"{self.type} {a}" for a in args]
        return self.w.call(self.type, f"llvm.{name}.{self.suffix}", typed)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call("fma", a, b, c)

    def abs(self, a: str) -> str:
        return self.call("fabs", a)

    def rint(self, a: str) -> str:
        return self.call("rint", a)

    def sign_of(self, size: str, sign: str) -> str:
        return self.call("copysign", size, sign)

    def cmp(self, predicate: str, a: str, b: str) -> str:
        return self.w.pure(f"fcmp {predicate} {self.type} {a}, {b}")

    def below(self, a: str, bound: float) -> str:
        return self.cmp("olt", a, self.const(bound))

    def select(self, c: str, a: str, b: str) -> str:
        return self.w.pure(f"select i1 {c}, {self.type} {a}, {self.type} {b}")

    def iop(self, name: str, a: str | int, b: str | int) -> str:
        return self.w.pure(f"{name} {self.int} {a}, {b}")

    def bits(self, a: str) -> str:
        return self.w.pure(f"bitcast {self.type} {a} to {self.int}")

    def from_bits(self, a: str) -> str:
        return self.w.pure(f"bitcast {self.int} {a} to {self.type}")

    def to_int(self, a: str) -> str:
        """A whole number of moderate size as an integer."""
        return self.w.pure(f"fptosi {self.type} {a} to {self.int}")

    def to_float(self, a: str) -> str:
        return self.w.pure(f"sitofp {self.int} {a} to {self.type}")

    def horner(self, coefficients: Sequence[float], x: str) -> str:
        total = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.const(c))
        return total

    def hardware(self, name: str, *args: str) -> str:
        found = self.target.math(self.w, name, self.type, args)
        if found is None:
            raise InternalError(f"the target has no {name} for {self.type}")
        return found

    def function(self, name: str, *args: str) -> str:
        """Call the internal function `name`; written at its first use."""
        return call_function(self.w, self.target, name, self.type, args)

    def whole(self, a: str) -> str:
        """2**a for an integer a in the range of exponents."""
        shift, bias = (52, 1023) if self.type == "double" else (23, 127)
        return self.from_bits(self.iop("shl", self.iop("add", a, bias), shift))


Body = Callable[..., str]
FUNCTIONS: dict[tuple[str, str], Body] = {}


def function(name: str, *types: str) -> Callable[[Body], Body]:
    def register(fn: Body) -> Body:
        for t in types:
            FUNCTIONS[name, t] = fn
        return fn

    return register


def call_function(w: Writer, target: GpuTarget, name: str, type: str, args: Sequence[str]) -> str:
    """Call fn(args) of one type as an internal function of the module."""
    symbol = f"@tessera.{name}.{type}"
    module = w.module
    if symbol not in module.defined:
        module.defined.add(symbol)
        body = Writer(module)
        m = Maths(body, target, type)
        result = FUNCTIONS[name, type](m, *[f"%a{i}" for i in range(len(args))])
        params = ", ".join(f"{type} %a{i}" for i in range(len(args)))
        head = f"define internal {type} {symbol}({params}) nounwind memory(none) {{"
        lines = [head, "entry:", *body.prologue, *body.lines, f"  ret {type} {result}", "}"]
        module.functions.append("\n".join(lines))
    return w.pure(f"call {type} {symbol}({', '.join(f'{type} {a}' for a in args)})")
