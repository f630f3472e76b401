"""One kernel of the corpus: natively on the CPU beside the interpreter, and built for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.errors import (
    InternalError,
    InterpreterError,
    OutOfBounds,
    TesseraError,
)
from tessera.runtime.driver import driver

from .arguments import BEFORE, Proposal, copies, proposals, storage
from .roles import roles_of

HOPPER = GPUTarget("cuda", 90, 32)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float64: 1e-6}


RANKING = ("refused", "no arguments", "race", "equal", "different", "crashed")


@dataclass
class Verdict:
    """`cpu`: equal, different, crashed, refused, no arguments, race; `gpu`: built, refused, crashed, –."""

    cpu: str
    gpu: str = "–"
    spilled: int = 0  # bytes a thread
    detail: str = ""

    @property
    def faulty(self) -> bool:
        return self.cpu in ("different", "crashed") or self.gpu == "crashed"


def judge(kernel: Any, wrappers: list[Any]) -> Iterator[Verdict]:
    """Try the proposals until one is launched and writes something. Each better verdict is yielded; the last counts."""
    best, taken = Verdict("refused"), None
    for proposal in proposals(kernel, wrappers, roles_of(kernel)):
        verdict = _try(kernel, proposal)
        if not best.detail or RANKING.index(verdict.cpu) > RANKING.index(best.cpu):
            best = verdict
            taken = None if verdict.cpu == "refused" else proposal
            yield best
        if verdict.cpu in ("equal", "different", "crashed"):
            break
    if taken is not None:
        _build(kernel, taken, best)
        yield best


def _try(kernel: Any, proposal: Proposal) -> Verdict:
    try:
        return _launch(kernel, proposal)
    except InternalError as e:
        return Verdict("crashed", detail=_first_line(e))
    except InterpreterError as e:
        return Verdict("no arguments", detail=_first_line(e))
    except TesseraError as e:
        return Verdict("refused", detail=_first_line(e))
    except Exception as e:
        return Verdict("refused", detail=f"{type(e).__name__}: {_first_line(e)}")


def _launch(kernel: Any, proposal: Proposal) -> Verdict:
    """The interpreter first: it says whether the arguments make sense."""
    meant = copies(proposal.arguments)
    clean = _interpret(kernel, proposal, meant)
    found = copies(proposal.arguments)
    driver.set_active("cpu")
    kernel[proposal.grid](**found, **proposal.options)
    worst = _distance(meant, found)
    if not worst:
        same = not _distance(proposal.arguments, meant)
        return Verdict("no arguments", detail="nothing is written") if same else Verdict("equal")
    return Verdict("different" if clean else "race", detail=worst)


def _interpret(kernel: Any, proposal: Proposal, arguments: dict[str, Any]) -> bool:
    """Whether the launch is free of races and of operations that make NaN of numbers."""
    driver.set_active("interpreter")
    try:
        kernel[proposal.grid](**copies(arguments), **proposal.options, debug="check")
        clean = True
    except OutOfBounds:
        raise
    except InterpreterError:
        clean = False
    kernel[proposal.grid](**arguments, **proposal.options)
    return clean


def _distance(meant: dict[str, Any], found: dict[str, Any]) -> str:
    """The first array whose elements differ by more than its type allows, with the place."""
    for name, want in meant.items():
        if not isinstance(want, torch.Tensor):
            continue
        want, have = storage(want), storage(found[name])
        if not want.dtype.is_floating_point:
            wrong = want != have
        else:
            a, b = want.double(), have.double()
            finite = a[a.isfinite()].abs()
            bound = TOLERANCE[want.dtype] * (a.abs() + (finite.mean() if len(finite) else 0))
            wrong = ~(((a - b).abs() <= bound) | (a == b) | (a.isnan() & b.isnan()))
        if wrong.any():
            at = int(wrong.nonzero()[0])
            return f"{name}[{at - BEFORE}] is {have[at].item()}, not {want[at].item()}; {int(wrong.sum())} differ"
    return ""


def _build(kernel: Any, proposal: Proposal, verdict: Verdict) -> None:
    """Compile for Hopper with the verifier on (the caller's environment), and count what spills."""
    signature, constants = {}, {}
    for p in kernel.params:
        value = proposal.arguments[p.name]
        if p.is_constexpr or value is None:
            signature[p.name], constants[p.name] = "constexpr", value
        else:
            signature[p.name] = _type_of(value)
    try:
        source = ASTSource(kernel, signature, constants)
        built = tessera.compile(source, target=HOPPER, options=proposal.options)
    except InternalError as e:
        verdict.gpu, verdict.detail = "crashed", verdict.detail or _first_line(e)
    except TesseraError as e:
        verdict.gpu, verdict.detail = "refused", verdict.detail or _first_line(e)
    else:
        verdict.gpu, verdict.spilled = "built", built.metadata.spills


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
        return "*" + short.get(name, name.replace("int", "i"))
    return {bool: "i1", int: "i32", float: "fp32"}[type(value)]


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip(" ^|")]
    return (lines[0] if lines else type(error).__name__)[:200]
