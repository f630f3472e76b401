"""Writes the launches between two calls of the array library as one call of native code (`sequence`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.errors import LaunchError
from tessera.graph.calls.sequence import LaunchSequence, SequenceStep
from tessera.graph.index import Expr, Sym, sym
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.plan import Launch
from tessera.ir import Value
from tessera.runtime.driver import driver_named

if TYPE_CHECKING:
    from tessera.graph.calls.source import Writer

Size = int | Expr
WIDE, NARROW = 1 << 63, (1 << 31) - (1 << 20)  # kernels round up to whole tiles


@dataclass(frozen=True, slots=True)
class Number:
    """A sum of sizes and of places in the arena, which must be less than `end`."""

    parts: tuple[Size | Value, ...] = ()
    end: int = WIDE

    def value(self, of: Callable[[Size | Value], int]) -> int:
        """Its value, where `of` gives that of a part. LaunchError if it does not fit."""
        found = sum(map(of, self.parts))
        if found >= self.end:
            raise LaunchError(
                f"{' + '.join(map(str, self.parts))} is {found}, but kernels of the graph count in 32 bits",
                help="call the graph with smaller tensors",
            )
        return found


class _Terms:
    """The objects of a sequence with their kinds, and its numbers, of which number 0 is 0."""

    def __init__(self, writer: Writer):
        self.writer = writer
        self.objects: dict[tuple[str, str], int] = {}
        self.numbers: dict[Number, int] = {Number(): 0}

    def number(self, *parts: Size | Value, end: int = WIDE) -> int:
        return self.numbers.setdefault(Number(parts, end), len(self.numbers))

    def object(self, text: str, kind: str) -> int:
        return self.objects.setdefault((text, kind), len(self.objects) + 1)

    def of(self, p: Value | Sym, kind: str) -> tuple[tuple[int, int], str]:
        """The term of a parameter, and how a person reads it."""
        if isinstance(p, Sym):
            end = WIDE if kind.endswith("64") else NARROW
            return (0, self.number(sym(p.name), end=end)), p.name
        if not isinstance(p.type, TensorType):
            name = self.writer.scalar(p)
            return (self.object(name, kind), 0), name
        base, parts = self.writer.location(p)
        offsets = self.writer.offsets
        shown = [str(offsets.get(n, n.name or "?") if isinstance(n, Value) else n) for n in parts]
        return (self.object(base, "ptr"), self.number(*parts)), " + ".join([base, *shown])


def write_sequence(w: Writer, steps: Sequence[Launch]) -> None:
    """Write the call; `w.tables` gets what its numbers are."""
    terms = _Terms(w)
    rows: list[SequenceStep] = []
    for step in steps:
        code = step.code
        kernel = w.exe.kernels.load(code.name)
        # Behind the parameters are the tensor maps, which native code finds by itself.
        kinds = kernel.metadata.args[: len(code.parameters)]
        given = [terms.of(p, kind) for p, kind in zip(code.parameters, kinds, strict=True)]
        rows.append(
            SequenceStep(
                kernel, terms.number(code.programs, end=NARROW), tuple(t for t, _ in given)
            )
        )
        w.line(f"# {code.name}: {code.programs} programs ({', '.join(text for _, text in given)})")
    k = len(w.tables)
    w.tables.append(list(terms.numbers))
    of_objects = [kind for _, kind in terms.objects]
    driver = driver_named(w.exe.kernels.target.backend)
    sequence = LaunchSequence(rows, of_objects, w.exe.host, driver)
    w.bind(f"launch_{k}", sequence.launch)
    w.bind(f"failed_{k}", sequence.failed)
    numbers = f"at.tables[{k}]" if w.dynamic else f"numbers_{k}"
    given = ", ".join([w.queue, numbers, *(text for text, _ in terms.objects)])
    w.line(f"failed = launch_{k}({given})")
    w.line(f"if failed: failed_{k}(failed, {given})")
