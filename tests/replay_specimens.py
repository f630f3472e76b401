"""What the tests add to the kernels that replay compiles (docs/replay.md): samples of all optimisations, random kernels
of the fuzzers' families, and calls of everything in the language."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, make_backend
from tessera.errors import TesseraError
from tessera.runtime.driver import driver
from tests.fuzz import families
from tests.fuzz.case import load_kernel
from tests.fuzz.devices import Memory
from tests.unit.optimization_samples import SAMPLES
from tests.unit.surface_calls import BINARY, HEAD, LIBRARY, OPERATORS, TERNARY, UNARY, matrix, tile

SEEDS = range(12)  # random kernels of each family
EACH = 12  # calls in one kernel
OPERANDS = (
    ("fp32", tile), ("i32", tile), ("fp16", tile), ("fp64", tile), ("u8", tile), ("fp32", matrix), ("fp16", matrix),
)  # fmt: skip


@dataclass
class Specimen:
    """A named kernel with its specialisation."""

    name: str
    source: ASTSource
    options: dict[str, Any]


def specimens() -> Iterator[Specimen]:
    for sample in SAMPLES:
        arguments, options = sample.wrap(sample.arrays()), sample.options
        name = f"sample-{sample.name.replace(' ', '-')}"
        yield specimen(name, sample.kernel, arguments, sample.constants, options)
    for family in families.FAMILIES:
        for seed in SEEDS:
            case = families.built(family, families.drawn(family, seed), seed)
            arguments = Memory(case).arguments()
            yield specimen(
                f"{family}-{seed}", load_kernel(case.source), arguments, {}, case.options
            )
    yield from calls()


def specimen(
    name: str, kernel: Any, arguments: list[Any], constants: dict[str, Any], options: dict[str, Any]
) -> Specimen:
    """As a launch with these arguments specialises the kernel."""
    driver.set_active("interpreter")
    try:
        made = kernel.warmup(*arguments, grid=(1,), **constants, **options)
    finally:
        driver.reset_active()
    return Specimen(name, made.src, options)


# --- the language -------------------------------------------------------------------------------------------------
def calls() -> Iterator[Specimen]:
    """Kernels of EACH accepted calls: of every function and operator with the first kind of operands that it takes."""
    forms = [
        *(f"tl.{name}({{0}})" for name in UNARY),
        *(f"tl.{name}({{0}}, {{0}})" for name in BINARY),
    ]
    forms += [f"tl.{name}({{0}}, {{0}}, {{0}})" for name in TERNARY]
    forms += [*(f"({{0}}) {op} ({{0}})" for op in OPERATORS), *LIBRARY]
    found = [call for form in forms if (call := accepted(form)) is not None]
    for first in range(0, len(found), EACH):
        yield Specimen(f"calls-{first // EACH}", source_of(found[first : first + EACH]), {})


def accepted(form: str) -> str | None:
    """The form with the first operands that the front end takes."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    options = backend.parse_options({})
    for kind, operand in OPERANDS:
        call = form.format(*[operand(kind)] * 5)
        with contextlib.suppress(TesseraError), contextlib.redirect_stdout(io.StringIO()):
            source_of([call]).make_ir(options)
            return call
    return None


def source_of(wanted: list[str]) -> ASTSource:
    """A kernel that makes these calls and keeps what they give."""
    names = [f"p_{kind}" for kind in ("fp32", "i32", "fp16", "fp64", "u8")]
    lines = [HEAD, "@tessera.jit", f"def kernel({', '.join(names)}, ints, floats):"]
    for i, call in enumerate(wanted):
        lines += [f"    r{i} = {call}", f"    keep(ints + {i << 16}, floats + {i << 16}, r{i})"]
    kinds = {name: f"*{name[2:]}" for name in names}
    return ASTSource(
        load_kernel("\n".join(lines) + "\n"), {**kinds, "ints": "*i64", "floats": "*fp64"}
    )
