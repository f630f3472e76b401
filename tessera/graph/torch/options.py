"""Holds the options of `torch.compile(model, backend="tessera", mode=..., options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tessera.errors import InvalidOption, UnknownOption, suggestion

CHOICES = {
    "random": ("philox", "eager"),
    "wrapper": ("native", "python"),
    "kernels": ("compiled", "interpreted", "none"),
    "matmul": ("auto", "kernel", "extern", "timed"),
    "numerics": ("fast", "eager"),
    "cuda_graphs": (False, True),
    "fuse": (True, False),
}


@dataclass(frozen=True)
class Options:
    """How a graph is compiled.

    `random`: "philox" for random numbers made inside of kernels, "eager" for the very numbers that eager draws.
    `kernels`: "compiled"; "interpreted" runs them by their meaning in NumPy, "none" runs every operation by eager:
    these two tell whose a fault is. `wrapper`: "native" launches all kernels between two externs by one call, "python"
    each by a line of Python. `cuda_graphs`: whether calls are recorded as CUDA graphs. `numerics`: "eager" rounds after
    each operation, as eager does; "fast" computes in fp32 between operations on half types in one kernel, and rounds
    a * b + c once. `fuse`: False makes a kernel of each operation. `dump`: a folder, to which each graph is written
    with its kernels as source, as a folder that runs by itself (dump.py). `matmul`: whether matrix products are kernels
    of ours, with what follows them, or eager's; "auto" decides by size, "timed" by measuring both."""

    random: str = "philox"
    kernels: str = "compiled"
    wrapper: str = "native"
    numerics: str = "fast"
    cuda_graphs: bool = False
    fuse: bool = True
    dump: str | None = None
    matmul: str = "auto"


# The modes of torch.compile, and the options that they stand for.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "matmul": "timed"},
    "max-autotune-no-cudagraphs": {"matmul": "timed"},
}


def options_of(mode: str | None, given: Mapping[str, Any] | None) -> Options:
    """The options of a mode, changed by those that were given.

    Raises `InvalidOption` for an unknown mode or value and a folder that cannot be made, `UnknownOption` for an unknown
    name."""
    if mode is not None and mode not in list(MODES):  # which may be anything that a user gave
        raise InvalidOption(
            f"mode is {mode!r}; the modes are {', '.join(MODES)}", help=suggestion(str(mode), MODES)
        )
    known = {f.name for f in fields(Options)}
    for name in given or ():
        if name not in known:
            raise UnknownOption(name, known, f"the options are: {', '.join(sorted(known))}")
    found = replace(Options(), **{**MODES[mode or "default"], **(given or {})})
    for name, allowed in CHOICES.items():
        value = getattr(found, name)
        if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
            raise InvalidOption(f"{name} is {value!r}; it may be {' or '.join(map(str, allowed))}")
    _make_folder(found.dump)
    return found


def _make_folder(dump: Any) -> None:
    """Make the folder that graphs are written to, if there is to be one: here a fault is the user's."""
    if dump is None:
        return
    if not isinstance(dump, str | Path):
        raise InvalidOption(f"dump is {dump!r}; it may be the path of a folder")
    try:
        Path(dump).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(
            f"dump is {str(dump)!r}, which is no folder and cannot be made one: {error.strerror}",
            help="give the path of a folder that may be written to",
        ) from error
