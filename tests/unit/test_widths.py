"""`python -m tessera widths`: how wide loads and stores are, as PTX and LLVM IR have them, and what is to blame."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.__main__ import main
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.compiler.compile import make_backend
from tessera.explain.widths import Width, widths
from tessera.runtime.driver import driver

GPU, CPU = GPUTarget("cuda", 90, 32), GPUTarget("cpu", "avx2", 1)
KINDS = {"x": "*fp32", "out": "*fp32", "first": "i32", "n": "i32", "stride": "i32"}


@tessera.jit
def shifted(x, out, first, n, stride):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + at, tl.load(x + first + at), mask=at < n)


@tessera.jit
def strided(x, out, first, n, stride):
    at = tl.arange(0, 1024)
    tl.store(out + at, tl.load(x + at * stride))


@tessera.jit
def by_rows(x, out, first, n, stride):
    rows, cols = tl.program_id(0) * 32 + tl.arange(0, 32), tl.arange(0, 32)
    for k in range(first, n, 32):
        v = tl.load(x + rows[:, None] * stride + cols[None, :] + k)
        tl.store(out + rows[:, None] * 32 + cols[None, :], v)


@tessera.jit
def looked_up(x, out, first, n, stride):
    at = tl.arange(0, 1024)
    places = tl.load(out + at).to(tl.int32)
    tl.store(out + at, tl.load(x + places % 16))


@tessera.jit
def tiny(x, out, first, n, stride):
    at = tl.arange(0, 2)
    tl.store(out + at, tl.load(x + at))


def source_of(kernel: Any, divisible: dict[str, int], kinds: dict[str, str] = KINDS) -> ASTSource:
    """With arrays at multiples of 16 bytes and numbers that are multiples of these."""
    known = {"x": 16, "out": 16, **divisible}
    attrs = {(i,): [["tt.divisibility", known[n]]] for i, n in enumerate(kinds) if n in known}
    return ASTSource(kernel, kinds, {}, attrs)


def found(source: ASTSource, target: GPUTarget) -> dict[str, Width]:
    backend = make_backend(target)
    options = backend.parse_options({})
    module = source.make_ir(options)
    if target is GPU:
        module.attrs |= backend.attributes(options)  # pyright: ignore[reportAttributeAccessIssue]
    return {w.what: w for w in widths(module, backend, options)}


def size(w: Width) -> int:
    assert w.size.endswith(" of 16 bytes"), w
    return int(w.size.split()[0])


@pytest.mark.parametrize(
    ("kernel", "divisible", "load", "store", "why"),
    [
        (shifted, {}, 4, 4, "divisibility 4 bytes: see the argument `first`"),
        (shifted, {"first": 16}, 16, 4, ""),
        (shifted, {"n": 16}, 4, 16, "divisibility 4 bytes: see the argument `first`"),
        (shifted, {"n": 16, "first": 2}, 8, 16, "divisibility 8 bytes: see the argument `first`"),
        (shifted, {"n": 16, "first": 16, "x": 4}, 4, 16, "divisibility 4 bytes: see the argument `x`"),
        (shifted, {"n": 2, "first": 16}, 16, 8, ""),
        (strided, {}, 4, 16, "contiguity 1: see mul at test_widths.py:"),
        (by_rows, {"first": 16}, 4, 16, "divisibility 4 bytes: see the argument `stride`"),
        (by_rows, {"stride": 16}, 4, 16, "divisibility 4 bytes: see the argument `first`"),
        (by_rows, {"stride": 16, "first": 16}, 16, 16, ""),
        (looked_up, {}, 4, 16, "contiguity 1: see `places`, cast at test_widths.py:"),
        (tiny, {}, 4, 4, "a thread has no more elements"),
    ],
)  # fmt: skip
def test_gpus(kernel: Any, divisible: dict[str, int], load: int, store: int, why: str) -> None:
    source = source_of(kernel, divisible)
    told = found(source, GPU)
    assert (size(told["load x"]), size(told["store out"])) == (load, store)
    assert told["load x"].why.startswith(why) and bool(why) == bool(told["load x"].why)
    ptx = tessera.compile(source, target=GPU).asm["ptx"]
    for word, bytes_ in (("ld", load), ("st", store)):
        vector = {4: "", 8: ".v2", 16: ".v4"}[bytes_]
        assert re.search(rf"{word}\.global(?:\.nc)?{vector}\.[bf]32", ptx), (word, bytes_)


def test_masks_are_blamed_for_their_bounds() -> None:
    told = found(source_of(shifted, {"first": 16, "n": 2}), GPU)
    assert told["store out"].why == "constancy 2 of the mask: see the argument `n`"
    both = found(source_of(shifted, {"out": 4}), GPU)["store out"].why
    assert both == (
        "divisibility 4 bytes: see the argument `out`; constancy 1 of the mask: see the argument `n`"
    )


@pytest.mark.parametrize(
    ("kernel", "load", "store"),
    [
        (shifted, "vectors", "vectors"),
        (strided, "one element at a time", "vectors"),
        (by_rows, "vectors", "vectors"),
        (looked_up, "one element at a time", "vectors"),
    ],
)
def test_cpus(kernel: Any, load: str, store: str) -> None:
    source = source_of(kernel, {})
    told = found(source, CPU)
    assert (told["load x"].size, told["store out"].size) == (load, store)
    assert bool(told["load x"].why) == (load != "vectors")
    text = tessera.compile(source, target=CPU).asm["llir"]
    assert ("call <8 x float> @llvm.masked.gather" in text) == (load != "vectors")


PROGRAM = """
import numpy as np
import tessera
import tessera.language as tl


@tessera.jit
def every_second(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + 2 * at))  # line 10


x = np.arange(2048, dtype=np.float32)
every_second[(1,)](x, out := np.zeros(1024, np.float32), BLOCK=1024)
assert out[3] == 6
"""


@pytest.mark.usefixtures("without_triton")
def test_the_command_runs_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    driver.set_active("cpu")
    try:
        assert main(["widths", str(path)]) == 0
        on_cpu = capsys.readouterr().out.splitlines()
        assert main(["widths", "--target", "sm_90", str(path)]) == 0
        on_gpu = capsys.readouterr().out.splitlines()
    finally:
        driver.reset_active()
    assert (
        on_cpu[0].startswith("every_second for cpu:") and on_gpu[0] == "every_second for cuda:90:"
    )
    why = r" contiguity 1: see mul at program.py:10"
    assert re.fullmatch(rf"  program\.py:10 +load x +one element at a time +{why}", on_cpu[1])
    assert re.fullmatch(rf"  program\.py:10 +load x +4 of 16 bytes +{why}", on_gpu[1])
    assert [line.split()[1:3] for line in on_gpu[1:]] == [["load", "x"], ["store", "out"]]


@pytest.mark.parametrize("args", [["--target"], ["--target", "sm90", "x.py"], []])
def test_command_lines_that_make_no_sense(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["widths", *args]) == 2
    told = capsys.readouterr().err
    assert "usage:" in told and ("--target must be like sm_90" in told) == bool(args)
