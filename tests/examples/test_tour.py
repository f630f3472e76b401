"""The IR that docs/tour.md shows is what the compiler prints."""

from __future__ import annotations

import re
from pathlib import Path

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.backend import NvidiaBackend
from tessera.compiler import ASTSource
from tessera.ir import print_module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tour.md").read_text()


@tessera.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, x + y, mask=inside)


def test_texts_of_add() -> None:
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    backend = NvidiaBackend(GPUTarget("cuda", 90, 32))
    options = backend.parse_options({})
    stages = backend.stages(options)
    metadata = {"name": "add", "args": [*types.values()], "shared": 0}
    product = ASTSource(add, types, {"BLOCK": 1024}, aligned).make_ir(options)
    printed: list[str] = []
    for name in ("tir", "gir"):
        product = stages[name](product, metadata)
        printed.append(re.sub(r", arg_attrs=.*?\]\]\]", "", print_module(product)))
    blocks = [b for b in re.findall(r"```\n(.*?)```", PAGE, flags=re.DOTALL) if "%x: tile" in b]
    assert len(blocks) == 2
    for block, text in zip(blocks, printed, strict=True):
        lines = [line.strip() for line in text.splitlines()]
        for line in block.splitlines():
            assert line == "..." or line.strip() in lines
