"""Compiles functions of the native subset (`subset`) into LLVM IR text.

`compile_functions(f, g)` returns a module with these functions and all that they call. Local variables are memory on
the stack, which the pass `sroa` turns into values; `and`, `or` and `… if … else …` branch, which `simplifycfg` undoes.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tessera.backends.llvm.subset_expressions import Expressions, Module
from tessera.backends.llvm.subset_types import (
    Constant,
    Value,
    evaluate,
    linkage,
    llvm_name,
    name_of,
    place_of,
    type_of,
)


def compile_functions(*functions: object) -> str:
    """Return the LLVM IR text of a module with these functions and those that they call. SubsetError gives the line of
    anything outside the subset."""
    module = Module()
    for f in functions:
        module.function(f)
    texts = [Body(module, f).text() for f in module.waiting]  # which grows
    return "\n".join([*module.lines, *texts, ""])


class Body(Expressions):
    """One function: its head and its statements."""

    def text(self) -> str:
        how = linkage(self.function)
        assert how is not None
        params = [f"{llvm_name(t)} %{i}" for i, t in enumerate(self.kind.params)]
        for i, (a, t) in enumerate(zip(self.node.args.args, self.kind.params)):
            self.assign(a.arg, Value(t, f"%{i}"))
        self.block(self.node.body)
        if not self.ended:
            if self.kind.result is not None:
                self.fail("the end of the function is reached without a value")
            self.emit("ret void")
        seen = "" if how.exported else "internal "
        head = f"define {seen}{llvm_name(self.kind.result)} @{how.symbol}({', '.join(params)}) {how.attributes}"
        return "\n".join([f"{head} {{", "start:", *self.slots, *self.lines, "}"])

    # --- statements ---
    def block(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            self.place = place_of(self.function, node)
            visit = getattr(self, f"_{type(node).__name__}", None)
            if visit is None:
                self.fail(f"{type(node).__name__} is no statement of the native subset")
            visit(node)

    def _Pass(self, node: ast.Pass) -> None:
        pass

    def _Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.expression(node.value)

    def _Assign(self, node: ast.Assign) -> None:
        value = self.expression(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id not in self.variables:
                self.assign(target.id, self.typed(value))
            else:
                self.store(self.place_for(target), value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        t = type_of(node.annotation, self.names, self.place)
        if node.value is None or t is None or not isinstance(node.target, ast.Name):
            self.fail("a declaration has a name, a type and a value")
        self.assign(node.target.id, self.converted(self.expression(node.value), t))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        where = self.place_for(node.target)
        added = self.expression(node.value)
        self.store(where, self.binary(type(node.op), self.load(where), added))

    def _Return(self, node: ast.Return) -> None:
        if (node.value is None) != (self.kind.result is None):
            self.fail(f"the function returns {name_of(self.kind.result)}")
        if node.value is None:
            self.emit("ret void")
        else:
            self.emit(f"ret {self.operand(self.expression(node.value), self.kind.result)}")

    def _If(self, node: ast.If) -> None:
        known = None if self.is_local(node.test) else evaluate(node.test, self.names)
        if isinstance(known, bool):
            self.block(node.body if known else node.orelse)
            return
        then, other, end = self.new_label(), self.new_label(), self.new_label()
        self.condition(node.test, then, other)
        for name, body in ((then, node.body), (other, node.orelse)):
            self.label(name)
            self.block(body)
            self.jump(end)
        self.label(end)

    def _While(self, node: ast.While) -> None:
        head, body, end = self.new_label(), self.new_label(), self.new_label()
        self.label(head)
        self.condition(node.test, body, end)
        self.label(body)
        self._body(node, head, end)
        self.jump(head)
        self.label(end)

    def _For(self, node: ast.For) -> None:
        name, call = node.target, node.iter
        ranges = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "range"
        )
        if not (
            isinstance(name, ast.Name)
            and isinstance(call, ast.Call)
            and ranges
            and 0 < len(call.args) < 3
        ):
            self.fail("a for loop has one variable, over range(end) or range(begin, end)")
        bounds = [Constant(0), *map(self.expression, call.args)][-2:]
        begin, end = self.unified(*bounds)
        self.assign(name.id, begin)
        head, body, step, out = (self.new_label() for _ in range(4))
        self.label(head)
        now = self.load(self.variables[name.id])
        self.branch(self.compared(ast.Lt, now, end), body, out)
        self.label(body)
        self._body(node, step, out)
        self.label(step)
        now = self.load(self.variables[name.id])
        self.assign(name.id, self.typed(self.binary(ast.Add, now, Constant(1))))
        self.jump(head)
        self.label(out)

    def _body(self, node: ast.For | ast.While, again: str, out: str) -> None:
        if node.orelse:
            self.fail("a loop has no else")
        self.loops.append((again, out))
        self.block(node.body)
        self.loops.pop()

    def _Continue(self, node: ast.Continue) -> None:
        self.jump(self.loops[-1][0])

    def _Break(self, node: ast.Break) -> None:
        self.jump(self.loops[-1][1])
