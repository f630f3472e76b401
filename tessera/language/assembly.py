"""Reads assembly of kernels (PTX) and runs it by operations of the language, for machines with other instructions.

A register is a tensor of the type that was written last; an instruction takes its bits as the type that it names.
Approximate instructions give what the language's functions give, and `.ftz` keeps subnormal numbers.

Source: PTX ISA.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tessera.dtypes import dtype
from tessera.errors import CompilationError, Loc, UnsupportedLanguageConstruct
from tessera.language import assembly_meaning as means
from tessera.language.assembly_meaning import PAIRS, TYPES, UNSIGNED
from tessera.language.creation import cast, full
from tessera.language.extra import libdevice
from tessera.language.values import constexpr as static
from tessera.language.values import tensor

REGISTERS = {"r": "i32", "h": "i16", "c": "i16", "l": "i64", "f": "float", "d": "double"}
BITS = {"i16": 16, "i32": 32, "i64": 64, "float": 32, "double": 64}
Parts = list[tensor]  # of a tensor: one for each of the `pack` elements that are taken at a time


def registers(constraints: str, loc: Loc | None = None) -> tuple[list[str], list[str], dict[int, int]]:  # fmt: skip
    """Return the LLVM types of the output and of the input registers, and which inputs are tied to which output."""
    outputs: list[str] = []
    inputs: list[str] = []
    tied: dict[int, int] = {}
    for part in constraints.replace(" ", "").split(","):
        if not part or part.startswith("~"):
            continue
        letter = part.lstrip("=&")
        if letter.isdigit() and int(letter) < len(outputs):
            tied[len(inputs)] = int(letter)
            inputs.append(outputs[int(letter)])
        elif letter not in REGISTERS:
            raise CompilationError(
                f"the constraint {part!r} of inline_asm_elementwise is not known",
                help=f"registers are {', '.join(REGISTERS)}", loc=loc,
            )  # fmt: skip
        else:
            (outputs if part.startswith("=") else inputs).append(REGISTERS[letter])
    return outputs, inputs, tied


def per_register(bits: int, pack: int) -> int:
    return min(max(1, 32 // bits), pack)


def check(what: str, given: int, widths: Sequence[int], pack: int, loc: Loc | None = None) -> None:  # fmt: skip
    """Refuse another number of registers than `pack` elements of these widths take."""
    needed = sum(-(-pack // per_register(bits, pack)) for bits in widths)
    if given != needed:
        raise CompilationError(
            f"inline_asm_elementwise has constraints for {given} {what}, but its operands take {needed} registers",
            help="elements of fewer than 32 bits go packed: 32 // bits of them in a register", loc=loc,
        )  # fmt: skip


@dataclass
class Assembly:
    """Runs a text. `call` calls a function of the language; `kinds` are the dtypes of the results."""

    text: str
    constraints: str
    kinds: Sequence[dtype]
    pack: int
    call: Callable[..., tensor]
    binary: Callable[..., tensor]  # applies an operator
    compare: Callable[..., tensor]
    at: dict[str, tensor] = field(default_factory=dict[str, tensor])  # registers by name
    tied: dict[str, str] = field(default_factory=dict[str, str])  # inputs that are outputs, too

    def run(self, args: Sequence[Parts]) -> list[Parts]:
        """Return the parts of each result for those of the operands."""
        pack = self.pack
        outputs, inputs, tied = registers(self.constraints)
        widths = [max(a[0].dtype.primitive_bitwidth, 8) for a in args]
        check("inputs", len(inputs), widths, pack)
        check("outputs", len(outputs), [max(k.primitive_bitwidth, 8) for k in self.kinds], pack)
        names = [f"${len(outputs) + n}" for n in range(len(inputs))]
        self.tied = {names[n]: f"${m}" for n, m in tied.items()}
        left = iter(names)
        for parts, bits in zip(args, widths, strict=True):
            n = per_register(bits, pack)
            for k in range(0, pack, n):
                name = next(left)
                self.at[self.tied.get(name, name)] = self.joined(parts[k : k + n])
        for words in _instructions(self.text):
            self.step(*words)
        left = (f"${n}" for n in range(len(outputs)))
        return [self.result_of(kind, left) for kind in self.kinds]

    def result_of(self, kind: dtype, names: Iterator[str]) -> Parts:
        n = per_register(max(kind.primitive_bitwidth, 8), self.pack)
        found = [self.parts(self.at.get(next(names)), kind, n) for _ in range(0, self.pack, n)]
        return [x for parts in found for x in parts]

    # --- registers -----------------------------------------------------------------------------------------------
    def seen(self, x: tensor, kind: dtype) -> tensor:
        """Return the low bits of x, or these with zeros above, as another type."""
        have, want = x.dtype.primitive_bitwidth, kind.primitive_bitwidth
        if have != want and have > 1:
            x = self.call(cast, [self.seen(x, UNSIGNED[have]), UNSIGNED[want]])
        return x if x.dtype == kind else self.call(cast, [x, kind], {"bitcast": have > 1})

    def parts(self, x: tensor | None, kind: dtype, count: int) -> Parts:
        """Return `count` values of a type, from the lowest bits on."""
        bits = max(kind.primitive_bitwidth, 8)
        if x is None:
            x = self.call(full, [(), 0, UNSIGNED[64]])
        if count == 1:
            return [self.seen(x, kind)]
        x = self.seen(x, UNSIGNED[max(x.dtype.primitive_bitwidth, bits * count)])
        return [self.seen(self.call(means.part, [x, static(k * bits)]), kind) for k in range(count)]

    def joined(self, parts: Parts) -> tensor:
        bits = max(parts[0].dtype.primitive_bitwidth, 8)
        whole = parts[0] if len(parts) == 1 else self.seen(parts[0], UNSIGNED[bits * len(parts)])
        for k, x in enumerate(parts[1:], 1):
            whole = self.call(means.above, [whole, self.seen(x, whole.dtype), static(k * bits)])
        return whole

    def value(self, name: str, kind: dtype) -> tensor:
        if name.startswith("{"):
            names = name.strip("{} ").split(",")
            unit = UNSIGNED[kind.primitive_bitwidth // len(names)]
            return self.seen(self.joined([self.value(n.strip(), unit) for n in names]), kind)
        name = self.tied.get(name, name)
        if name in self.at:
            return self.seen(self.at[name], kind)
        return self.call(full, [(), _number(name, kind), kind])

    def write(self, name: str, x: tensor, guard: tensor | None) -> None:
        if name.startswith("{"):
            names = name.strip("{} ").split(",")
            unit = UNSIGNED[x.dtype.primitive_bitwidth // len(names)]
            for n, part in zip(names, self.parts(x, unit, len(names))):
                self.write(n.strip(), part, guard)
            return
        name = self.tied.get(name, name)
        if guard is not None and name in self.at:
            x = self.call(libdevice.where, [guard, x, self.seen(self.at[name], x.dtype)])
        self.at[name] = x

    # --- instructions ----------------------------------------------------------------------------------------------
    def step(self, condition: str, name: str, words: list[str], operands: list[str]) -> None:
        """Run one instruction. Words are what stands behind the name, between dots."""
        if name == "griddepcontrol":
            return
        guard = None
        if condition:
            guard = self.value(condition.lstrip("!"), TYPES["pred"])
            guard = self.call(means.flipped, [guard]) if condition[0] == "!" else guard
        try:
            converts = name == "cvt"
            x = self.converted(words, operands[1:]) if converts else self.result(name, words, operands[1:])  # fmt: skip
        except (KeyError, ValueError):
            spelled = ".".join([name, *words])
            raise _unknown(f"{spelled} {', '.join(operands)}") from None
        self.write(operands[0], x, guard)

    def result(self, name: str, words: list[str], operands: list[str]) -> tensor:
        *words, spelled = words
        row = means.ROWS[name]
        if spelled in PAIRS:
            halves = [self.parts(self.value(o, UNSIGNED[32]), PAIRS[spelled], 2) for o in operands]
            return self.joined([self.applied(row, words, list(h)) for h in zip(*halves)])
        kind = TYPES[spelled]
        kinds = [{"t": kind, "u": UNSIGNED[32], "p": TYPES["pred"]}.get(k) for k in row.kinds]
        given = [
            static(int(o, 0)) if k is None else self.value(o, k)
            for k, o in zip(kinds, operands, strict=True)
        ]
        return self.applied(row, words, given)

    def applied(self, row: means.Row, words: list[str], args: Sequence[tensor | static]) -> tensor:  # fmt: skip
        first = args[0]
        assert isinstance(first, tensor)
        function = row.function(words, first.dtype)
        if isinstance(function, str):
            x = (self.binary if function in means.OPERATORS else self.compare)(function, *args)
        else:
            x = self.call(function, args)
        return self.call(libdevice.saturatef, [x]) if "sat" in words else x

    def converted(self, words: list[str], operands: list[str]) -> tensor:
        *words, to, have = words
        if not means.fit(words, means.CONVERSIONS):
            raise KeyError(to)
        if to not in PAIRS:
            return self.chained(words, to, self.value(operands[0], TYPES[have]))
        if have in PAIRS:
            parts = self.parts(self.value(operands[0], UNSIGNED[32]), PAIRS[have], 2)
        else:
            parts = [self.value(o, TYPES[have]) for o in reversed(operands)]  # the first goes above
        return self.joined([self.chained(words, to, x) for x in parts])

    def chained(self, words: list[str], to: str, x: tensor) -> tensor:
        for function, *more in means.conversion(words, to, x.dtype):
            x = self.call(function, [x, *more])
        return x


def _instructions(text: str) -> Iterator[tuple[str, str, list[str], list[str]]]:
    for part in re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split(";"):
        part = part.strip("\n\t\r {}" if part.count("{") != part.count("}") else "\n\t\r ")
        if not part or part.startswith(".reg"):
            continue
        found = re.fullmatch(r"(?:@(!?[\w%$]+)\s+)?([a-z]\w*)((?:\.\w+)*)(?:\s+([^:]+))?", part)
        if found is None:
            raise _unknown(part)
        operands = re.findall(r"\{[^}]*\}|[^\s,]+", found[4] or "")
        yield found[1] or "", found[2], found[3].split(".")[1:], operands


def _number(text: str, kind: dtype) -> int | float:
    if text[:2] in ("0f", "0F", "0d", "0D"):
        raw = bytes.fromhex(text[2:])
        return struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0]
    if kind.is_floating():
        return float(text)
    bits = kind.primitive_bitwidth
    n = int(text.rstrip("U"), 0) & ((1 << bits) - 1)
    return n - (1 << bits) if kind.is_int_signed() and n >> (bits - 1) else n


def _unknown(instruction: str) -> UnsupportedLanguageConstruct:
    return UnsupportedLanguageConstruct(
        f"inline_asm_elementwise is PTX, and {' '.join(instruction.split())!r} is known on NVIDIA GPUs only",
        help="write the computation with tl operations, or guard it with `if tl.target_info.is_cuda():`",
    )
