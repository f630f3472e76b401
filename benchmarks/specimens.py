"""What the benchmarks add to the kernels that replay compiles (docs/replay.md): their own kernels, and the examples' at
other tile sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import compile_time
import products
import sources

import tessera.language as tl

TILES = {"fp16": (128, 256, 64, 8, 3), "fp8e4nv": (128, 256, 128, 8, 3), "fp32": (128, 128, 32, 8, 3),
         "int8": (128, 128, 128, 4, 3)}  # fmt: skip
SPELT = {"int8": "i8"}
ORDERS = ((False, False), (False, True), (True, False), (True, True))  # whether a, b are turned


@dataclass
class Specimen:
    """As those of the examples, with a name."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    capabilities: tuple[int, ...] = (80, 90)


def specimens() -> Iterator[Specimen]:
    for name, case in compile_time.cases("tessera").items():
        yield Specimen(name.replace(" ", "-"), *case)
    yield from _own()
    for dtype, tile in TILES.items():
        yield from _by_pointers(dtype, tile)
        for order in ORDERS:
            yield _by_descriptors(dtype, tile, order)


def _own() -> Iterator[Specimen]:
    own = sources.kernels()
    flat = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    for kernel in (own.five, own.copy):
        kinds = {k: v for k, v in flat.items() if k in kernel.arg_names}
        yield Specimen(kernel.__name__, kernel, kinds, {"BLOCK": 1024})
    many = {
        name: "*fp32" if len(name) == 1 and name != "n" else "i32"
        for name in own.twenty.arg_names[:-1]
    }
    yield Specimen("twenty", own.twenty, {**many, "scale": "fp32"}, {"BLOCK": 1024})
    kinds = {"x": "*fp32", "out": "*fp32", "p": "fp32", "seed": "i32"}
    yield Specimen("single_dropout", own.single_dropout, kinds, {"BLOCK": 1024})
    for tanh in (False, True):
        kinds = {"x": "*fp16", "bias": "*fp16", "out": "*fp16", "cols": "i32"}
        yield Specimen("gelu_bias", own.gelu_bias, kinds, {"TANH": tanh, "BLOCK": 4096})
    kinds = {
        "a": "*fp16",
        "x": "*fp16",
        "out": "*fp16",
        **dict.fromkeys(("M", "N", "stride"), "i32"),
    }
    yield Specimen("gemv", own.gemv, kinds, {"BM": 16, "BN": 256})
    kinds = {"a": "*i8", "b": "*i8", "c": "*i32", **dict.fromkeys("MNK", "i32")}
    yield Specimen(
        "int_matmul", own.int_matmul, kinds, {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8}
    )


def _constants(dtype: str, tile: tuple[int, ...]) -> dict[str, Any]:
    acc = tl.int32 if dtype == "int8" else tl.float32
    return {"BM": tile[0], "BN": tile[1], "BK": tile[2], "GROUP": products.GROUP, "ACC": acc}


def _options(tile: tuple[int, ...]) -> dict[str, Any]:
    return {"num_warps": tile[3], "num_stages": tile[4]}


def _result(dtype: str) -> str:
    return {"int8": "i32", "fp8e4nv": "fp16"}.get(dtype, dtype)


def _by_pointers(dtype: str, tile: tuple[int, ...]) -> Iterator[Specimen]:
    """Row-major operands, and b by columns."""
    kind = SPELT.get(dtype, dtype)
    for unit in ("sbn", "sbk"):
        constants = {**_constants(dtype, tile), "sak": 1, unit: 1, "EVEN": True}
        kinds = {n: "i32" for n in products.by_pointers.arg_names if n not in constants}
        kinds |= {"a": f"*{kind}", "b": f"*{kind}", "c": f"*{_result(dtype)}"}
        name = f"pointers-{dtype}-{'rows' if unit == 'sbn' else 'columns'}"
        yield Specimen(name, products.by_pointers, kinds, constants, _options(tile))


def _by_descriptors(dtype: str, tile: tuple[int, ...], order: tuple[bool, bool]) -> Specimen:
    (bm, bn, bk, *_), kind = tile, SPELT.get(dtype, dtype)
    a, b = ((bk, bm) if order[0] else (bm, bk)), ((bn, bk) if order[1] else (bk, bn))
    kinds = {"a": f"tensordesc<{kind}[{a[0]}, {a[1]}]>", "b": f"tensordesc<{kind}[{b[0]}, {b[1]}]>",
             "c": f"tensordesc<{_result(dtype)}[{bm}, {bn}]>", **dict.fromkeys("MNK", "i32")}  # fmt: skip
    constants = {**_constants(dtype, tile), "A_TURNED": order[0], "B_TURNED": order[1]}
    name = "descriptors-" + dtype + "-" + "".join("c" if turned else "r" for turned in order)
    return Specimen(name, products.by_descriptors, kinds, constants, _options(tile), (90,))
