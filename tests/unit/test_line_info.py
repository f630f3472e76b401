"""Source lines in code: each instruction names the line that it comes from, and the machine code stays the same."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.elf import sections
from tessera.compiler import ASTSource, compile
from tessera.compiler.kernel import CompiledKernel
from tessera.config import knobs
from tessera.explain.machine_code import cubin_by_line

CUDA, CPU = GPUTarget("cuda", 90, 32), GPUTarget("cpu", "avx2", 1)


@tessera.jit
def halved(x):
    return tl.where(x > 0.25, x, 0.5)  # halved


@tessera.jit(noinline=True)
def called(x, y):
    return tl.exp2(x) + y  # called


@tessera.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(n):
        total += halved(tl.load(x + i * BLOCK + at))  # loop
    peak = tl.max(total, axis=0)  # peak
    tl.store(out + at, total + called(peak, 2.0))  # store


def line_of(comment: str) -> int:
    for function in (halved, called, kernel):
        lines, first = inspect.getsourcelines(function.fn)
        for i, line in enumerate(lines):
            if line.rstrip().endswith(f"# {comment}"):
                return first + i
    raise AssertionError(comment)


def compiled(target: GPUTarget = CUDA) -> CompiledKernel:
    source = ASTSource(kernel, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 256})
    return compile(source, target)


def lines_at(ptx: str, instruction: str) -> set[int]:
    """Source lines in force where a PTX instruction stands."""
    found: set[int] = set()
    line = 0
    for text in ptx.splitlines():
        if place := re.match(r"\s*\.loc\s+\d+ (\d+)", text):
            line = int(place[1])
        elif re.search(instruction, text):
            found.add(line)
    return found


def instructions(made: CompiledKernel) -> list[str]:
    texts = made.asm["ptx"].splitlines()
    return [t.strip() for t in texts if re.match(r"\t(?!\.)", t) and "callseq" not in t]


def test_instructions_name_their_lines() -> None:
    ptx = compiled().asm["ptx"]
    assert f'.file\t1 "{Path(__file__)}"' in ptx
    assert lines_at(ptx, r"ld\.global") == {line_of("loop")}
    # A maximum over a warp tests for NaN at its own line, in the library.
    assert lines_at(ptx, r"setp\.(?!nan)\w+\.f32") == {line_of("halved")}
    assert lines_at(ptx, r"ex2\.approx") == {line_of("called")}
    assert lines_at(ptx, r"st\.global") == {line_of("store")}


def test_calls_are_known() -> None:
    """An inlined function's instruction knows its call; a function that is called has a place of its own."""
    text = compiled().asm["llir"]
    nodes = dict(re.findall(r"^!(\d+) = (.*)$", text, re.MULTILINE))
    inlined = next(n for n in nodes.values() if f"line: {line_of('halved')}, column" in n)
    caller = re.search(r"inlinedAt: !(\d+)", inlined)
    assert caller is not None
    assert f"line: {line_of('loop')}," in nodes[caller[1]]
    names = set(re.findall(r'DISubprogram\(name: "(\w+)"', text))
    assert {"halved", "kernel"} <= names
    assert len(re.findall(r"^define .* !dbg !\d+ \{", text, re.MULTILINE)) == 2


def test_the_knob_leaves_them_out() -> None:
    with knobs.scope():
        with_lines = compiled()
        knobs.compilation.disable_line_info = True
        without = compiled()
    assert ".loc" in with_lines.asm["ptx"]
    assert ".loc" not in without.asm["ptx"]
    assert "!dbg" not in without.asm["llir"]
    assert with_lines.hash != without.hash
    assert len(without.asm["cubin"]) < len(with_lines.asm["cubin"])
    assert instructions(with_lines) == instructions(without)


def test_a_table_in_another_version_tells_nothing() -> None:
    """Tools of other releases may write tables that are not read: reports then tell lines of PTX."""
    cubin = compiled().asm["cubin"]
    assert cubin_by_line(cubin, "kernel", {})
    (table,) = [s for s in sections(cubin) if s.name == ".debug_line"]
    newer = table.data[:4] + (5).to_bytes(2, "little") + table.data[6:]
    assert cubin_by_line(cubin.replace(table.data, newer), "kernel", {}) == {}


def places_at(llir: str, instruction: str) -> set[str]:
    """What the comments of a CPU's LLVM IR say where an instruction stands."""
    found: set[str] = set()
    place = ""
    for line in llir.splitlines():
        if line.lstrip().startswith("; "):
            place = line.lstrip()[2:]
        elif re.search(instruction, line):
            found.add(place)
    return found


def test_cpu_code_says_its_lines_in_comments() -> None:
    """Also of instructions that are hoisted, of calls, and behind a loop."""
    llir, here = compiled(CPU).asm["llir"], Path(__file__).name
    loop, store = f"{here}:{line_of('loop')}", f"{here}:{line_of('store')}"
    assert places_at(llir, r"fcmp ogt .*0x3FD0000000000000") == {
        f"{loop} > {here}:{line_of('halved')}"
    }
    assert {loop, store} <= places_at(llir, r"fadd .*<\d+ x float>")
    assert places_at(llir, r"call void @\"called") == {store}
    (peak,) = places_at(llir, r"= call .*maxnum.v8f32\(")
    assert re.fullmatch(rf"{here}:{line_of('peak')} > reductions.py:\d+", peak)


def test_the_knob_leaves_comments_out() -> None:
    with knobs.scope():
        with_lines = compiled(CPU)
        knobs.compilation.disable_line_info = True
        without = compiled(CPU)
    text = re.sub(r"^ *;.*\n", "", with_lines.asm["llir"], flags=re.MULTILINE)
    assert without.asm["llir"] == text != with_lines.asm["llir"]
    assert with_lines.asm["object"] == without.asm["object"]


def test_names_that_ptxas_refuses(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" ünusual \\ folder'
    folder.mkdir()
    path = folder / "kernels.py"
    path.write_text(
        "import tessera\nimport tessera.language as tl\n\n\n@tessera.jit\ndef one(x):\n    tl.store(x, 1.0)\n"
    )
    space: dict[str, Any] = {}
    exec(__builtins__["compile"](path.read_text(), str(path), "exec"), space)
    made = compile(ASTSource(space["one"], {"x": "*fp32"}), CUDA)
    assert lines_at(made.asm["ptx"], r"st\.global") == {7}
    assert made.asm["cubin"]


@pytest.mark.gpu
def test_a_kernel_with_lines_runs() -> None:
    import torch

    x, out = torch.rand(4, 256, device="cuda"), torch.empty(256, device="cuda")
    kernel[(1,)](x, out, 4, BLOCK=256)
    total = torch.where(x > 0.25, x, 0.5).sum(0)
    torch.testing.assert_close(out, total + torch.exp2(total.max()) + 2.0)
