"""Reads the text that `text.py` prints. Errors show the line of IR with a caret."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from tessera.errors import IRError
from tessera.ir.core import OPCODES, Attributes, Block, Module, Op, Value
from tessera.ir.types import parse_layout_text, parse_type

_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_NAME = re.compile(r"%[\w.]+")  # like Python names: letters of any script
_WORD = re.compile(r"[^\W\d][\w.]*")
_ALIAS = re.compile(r"#\w+")
_NUMBER = re.compile(r"-?\d+")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_FLOAT = re.compile(r"float\('([^']*)'\)")


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.at: int = 0
        self.values: dict[str, Value] = {}
        self.layouts: dict[str, str] = {}  # by alias

    # --- characters -------------------------------------------------------------------------------------
    def fail(self, message: str) -> IRError:
        start = self.text.rfind("\n", 0, self.at) + 1
        line = self.text[start:].split("\n", 1)[0]
        number = self.text.count("\n", 0, self.at) + 1
        caret = " " * (self.at - start) + "^"
        return IRError(f"line {number}: {message}\n  {line}\n  {caret}", help="")

    def skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def accept(self, literal: str) -> bool:
        self.skip()
        if self.text.startswith(literal, self.at):
            self.at += len(literal)
            return True
        return False

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.fail(f"expected {literal!r}")

    def take(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def need(self, pattern: re.Pattern[str], what: str) -> str:
        found = self.take(pattern)
        if found is None:
            raise self.fail(f"expected {what}")
        return found

    def separator(self, closing: str) -> None:
        """Skip a comma, unless the list ends here."""
        self.skip()
        if not self.text.startswith(closing, self.at):
            self.expect(",")

    # --- pieces -----------------------------------------------------------------------------------------
    def balanced(self) -> str:
        """Return the text of a type or layout: up to a comma, blank or closing bracket outside all brackets."""
        self.skip()
        depth, start = 0, self.at
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0 and c in ",)}] \n":
                break
            if c in "<[":
                depth += 1
            elif c == "]" or (c == ">" and self.text[self.at - 1] != "-"):  # not that of `->`
                depth -= 1
            self.at += 1
        return self.text[start : self.at]

    def read(self, parse: Callable[[str], object]) -> Any:
        """Return the next type or layout as read by `parse`; its ValueError gets line and caret."""
        self.skip()
        start = self.at
        text = self.balanced()
        try:
            return parse(_ALIAS.sub(lambda m: self.layouts[m[0]], text))
        except KeyError as e:
            self.at = start
            raise self.fail(f"{e.args[0]} is not defined") from None
        except ValueError as e:
            self.at = start
            raise self.fail(str(e)) from None

    def type(self) -> Any:
        return self.read(parse_type)

    def typed_name(self) -> tuple[str, Any]:
        name = self.need(_NAME, "a value name")
        self.expect(":")
        return name, self.type()

    def attribute(self) -> Any:
        if self.accept("["):
            items: list[object] = []
            while not self.accept("]"):
                items.append(self.attribute())
                self.separator("]")
            return tuple(items)
        if self.accept("!"):
            return self.type()
        if self.accept("@"):
            return self.read(parse_layout_text)
        found = self.take(_FLOAT)
        if found is not None:
            inner = found[7:-2]
            return float.fromhex(inner) if "0x" in inner else float(inner)
        start = self.at
        for pattern in (_STRING, _NUMBER, _WORD):
            found = self.take(pattern)
            if found is not None:
                try:
                    return ast.literal_eval(found)
                except ValueError:
                    self.at = start
                    raise self.fail(f"{found!r} is not a literal") from None
        raise self.fail("expected an attribute value")

    def attributes(self) -> Attributes:
        found: Attributes = {}
        if self.accept("{"):
            while not self.accept("}"):
                name = self.need(_WORD, "an attribute name")
                self.expect("=")
                found[name] = self.attribute()
                self.separator("}")
        return found

    def value(self) -> Value:
        self.skip()
        start = self.at
        name = self.need(_NAME, "a value")
        if name not in self.values:
            self.at = start
            raise self.fail(f"{name} is not defined")
        return self.values[name]

    def operands(self, cls: type[Op]) -> list[Any]:
        args: list[object] = []
        for i, f in enumerate(cls.operand_fields):
            if i:
                self.expect(",")
            if f.variadic:
                self.expect("[")
                items: list[Value] = []
                while not self.accept("]"):
                    items.append(self.value())
                    self.separator("]")
                args.append(items)
            elif f.optional and self.accept("_"):
                args.append(None)
            else:
                args.append(self.value())
        return args

    # --- ops ----------------------------------------------------------------------------------------------
    def define(self, name: str, value: Value) -> None:
        if name in self.values:
            raise self.fail(f"{name} is defined twice")
        base = name[1:]
        value.name = "" if base.isdigit() else base
        self.values[name] = value

    def block(self) -> Block:
        self.expect("(")
        block = Block()
        while not self.accept(")"):
            name, type = self.typed_name()
            self.define(name, block.add_arg(type))
            self.separator(")")
        self.expect("{")
        while not self.accept("}"):
            block.append(self.op())
        return block

    def op(self) -> Op:
        results: list[tuple[str, Any]] = []
        self.skip()
        if self.text.startswith("%", self.at):
            results.append(self.typed_name())
            while self.accept(","):
                results.append(self.typed_name())
            self.expect("=")
        self.skip()
        start = self.at
        opcode = self.need(_WORD, "an opcode")
        cls = OPCODES.get(opcode)
        if cls is None:
            self.at = start
            raise self.fail(f"{opcode!r} is not an operation")
        args = self.operands(cls)
        attrs = self.attributes()
        regions = [self.block() for _ in cls.region_fields]
        try:
            op = cls(*args, results=[t for _, t in results], regions=regions, **attrs)
        except TypeError as e:  # an attribute is missing
            self.at = start
            raise self.fail(str(e)) from None
        for (name, _), value in zip(results, op.results, strict=True):
            self.define(name, value)
        return op

    def module(self) -> Module:
        while (alias := self.take(_ALIAS)) is not None:
            self.expect("=")
            self.skip()
            self.layouts[alias] = self.balanced()
        self.expect("module")
        module = Module(**self.attributes())
        self.expect("{")
        while not self.accept("}"):
            self.values = {}
            module.body.append(self.op())
        self.skip()
        if self.at != len(self.text):
            raise self.fail("text after the module")
        return module


def parse_module(text: str) -> Module:
    """Return the module that `print_module` wrote. Raises IRError with line and caret if the text is not IR."""
    return _Parser(text).module()
