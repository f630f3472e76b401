"""Arguments made up for a published kernel: arrays, sizes, strides and compile-time constants by what they are called.

Several proposals are made for each kernel, with other types and constants; the first that compiles and stays inside
its arrays is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from .roles import Roles

ELEMENTS = 1 << 21  # of an array: four strides of 32 fit
BEFORE = 1 << 18  # elements of its storage in front of it: some kernels walk backwards
SIZE = 24  # of a dimension: no multiple of a block, so that masks count


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


INTEGER_ARRAYS = _words(
    "idx", "ind(ex|ices)", "offs", "seqlen", "lens?$", "_lens?_", "table", "slot", "_ids?(_|$)", "label", "target",
    "token", "count", "chunk_", "mapping", "pos",
)  # fmt: skip
MASKS = _words("mask", "bool")
FLOATS = _words(
    "eps", "scale", "alpha", "beta", "rate", "prob", "temperature", "soft_?cap", "slope", "theta", "momentum",
    "^lr$", "^p$", "weight_decay", "factor", "norm", "max_val", "min_val", "value", "gamma", "thresh",
)  # fmt: skip
FLAGS = _words(
    r"^(HAS|IS|USE|STORE|SAVE|RETURN|OUTPUT|CAUSAL|EVEN|NEED|ENABLE|APPLY|WITH|DO|REVERSE|TRANS|ADD|COMPUTE)(_|$)",
    r"^(INPLACE|FUSE|BIAS|MASK|LOWER|UPPER|NORM|KEEP|SPLIT|VARLEN|IF)(_|$)", "CAUSAL", "_FLAG", "ENABLED",
)  # fmt: skip
FEW = _words(
    "^(H|HQ|HK|HV|G|Z|B|BS|NH|NB|NG)$", "^(NUM|N)_", "HEADS?$", "GROUPS?", "SPLITS?$", "STAGES?", "REPEAT", "UNROLL",
    "RATIO$",
)  # fmt: skip
KINDS = (torch.float32, torch.float16, torch.bfloat16, torch.int32)


@dataclass
class Proposal:
    """Arguments by name; `kind` is the element type of the arrays that are not of integers by their name."""

    arguments: dict[str, Any]
    kind: torch.dtype
    grid: tuple[int, ...]
    options: dict[str, Any]


def proposals(kernel: Any, wrappers: list[Any], roles: Roles) -> Iterator[Proposal]:
    """Arguments for `kernel`, whose decorators (tuners, heuristics) say some of them."""
    for kind, flag, block, index in product(KINDS, (False, True), (32, 16), (torch.int32, torch.int64)):  # fmt: skip
        constants, options = configured(wrappers)
        given: dict[str, Any] = {}
        strides = _strides([p.name for p in kernel.params])
        for p in kernel.params:
            if p.name in constants:
                given[p.name] = constants[p.name]
            elif p.is_constexpr and p.has_default and not isinstance(p.default, bool):
                given[p.name] = p.default
            elif p.name in roles.pointers:
                given[p.name] = _array(p.name, kind, index)
            elif p.is_constexpr:
                given[p.name] = _constant(p.name, flag, block, kind, strides)
            else:
                given[p.name] = _scalar(p, strides)
        for wrapper in wrappers:
            for name, value in getattr(wrapper, "values", {}).items():
                given[name] = value(given)
        yield Proposal(given, kind, (2,) * roles.axes, options)


def configured(wrappers: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants and options of the first configuration of the kernel's tuner."""
    for wrapper in wrappers:
        if configs := getattr(wrapper, "configs", None):
            first = configs[0]
            options = {"num_warps": first.num_warps, "num_stages": first.num_stages}
            return dict(first.kwargs), options
    return {}, {}


def _array(name: str, kind: torch.dtype, index: torch.dtype) -> torch.Tensor:
    return _storage(name, ELEMENTS + BEFORE, kind, index)[BEFORE:]


def _storage(name: str, size: int, kind: torch.dtype, index: torch.dtype) -> torch.Tensor:
    seed = torch.Generator().manual_seed(sum(map(ord, name)))
    if re.search("cu_?seq|cu_?len|seq_?start|indptr", name, re.I):
        return torch.arange(-BEFORE, size - BEFORE, dtype=index) * SIZE % (4 * SIZE)
    if INTEGER_ARRAYS.search(name):
        return torch.randint(0, 8, (size,), generator=seed, dtype=index)
    if MASKS.search(name):
        return torch.randint(0, 2, (size,), generator=seed).to(torch.int8)
    if not kind.is_floating_point:
        return torch.randint(-9, 9, (size,), generator=seed, dtype=kind)
    return torch.rand((size,), generator=seed).to(kind)


def copies(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, of arrays with storages of their own."""
    return {
        name: storage(value).clone()[BEFORE:] if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def storage(array: torch.Tensor) -> torch.Tensor:
    """All that a kernel may reach through `array`."""
    return array.as_strided((len(array) + BEFORE,), (1,), 0)


def _strides(names: list[str]) -> dict[str, int]:
    """Of the strides of one array the last named is 1, each before it 32 times the next."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if "stride" in name.lower():
            groups.setdefault(re.sub(r"_?[a-z0-9]$", "", name), []).append(name)
    return {
        name: 32 ** min(3, len(group) - 1 - i)
        for group in groups.values()
        for i, name in enumerate(group)
    }


def _constant(name: str, flag: bool, block: int, kind: torch.dtype, strides: dict[str, int]) -> Any:
    if name in strides:
        return strides[name]
    if re.search(r"dtype|_type$|precision", name, re.I):
        return "ieee" if "prec" in name.lower() else _language_type(kind)
    if re.search(r"activation|act_fn|_fn$|mode$|reduction|format", name, re.I):
        return None if not flag else ""
    if FLAGS.search(name):
        return flag
    if FLOATS.search(name) and name != name.upper():
        return 0.5
    return 2 if FEW.search(name) else block


def _language_type(kind: torch.dtype) -> Any:
    import triton.language as tl

    names = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.int32: "int32"}
    return getattr(tl, names.get(kind, "float32"))


def _scalar(p: Any, strides: dict[str, int]) -> Any:
    name = p.name
    if name in strides:
        return strides[name]
    if p.has_default:
        return p.default
    if FLOATS.search(name):
        return 0.5
    if re.search(r"stride", name, re.I):
        return 32
    return 2 if FEW.search(name) else SIZE
