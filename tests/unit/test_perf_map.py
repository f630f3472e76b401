"""What `perf` reads of kernels on the CPU: the map of names, and the dump with lines and code."""

from __future__ import annotations

import ctypes
import inspect
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu.debug_lines import object_with_lines, with_lines
from tessera.backends.elf import sections
from tessera.config import knobs
from tessera.runtime.driver import driver_named


@tessera.jit
def doubled(v):
    return v + v


@tessera.jit(noinline=True)
def halved(p, v):
    tl.store(p, v / 2)


@tessera.jit
def plain(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    for _ in range(3):
        v = doubled(v) - 1
    tl.store(out + at, v, mask=at < n)


@tessera.jit
def product(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, 16)
    a = tl.load(x + at[:, None] * 16 + at[None, :])
    tl.store(out + at[:, None] * 16 + at[None, :], tl.dot(a, a))
    halved(out, tl.sum(tl.max(a, 1)) + BLOCK + n)


def line_of(kernel: Any, text: str) -> int:
    """The line of a kernel that has a text."""
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def loaded(kernel: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, block: int = 64) -> Any:
    monkeypatch.setattr("tessera.runtime.drivers.perf_map.FOLDER", folder)
    compiled = kernel.warmup(
        np.ones(256, np.float32), np.zeros(256, np.float32), 256, BLOCK=block, grid=(1,)
    )
    with knobs.cpu.scope():
        knobs.cpu.perf_map = True
        compiled.load(driver_named("cpu"))
    return compiled


def records(dump: bytes) -> Iterator[tuple[int, bytes]]:
    """The kinds and contents of a dump's records, after its header."""
    magic, version, size, machine, _, pid, _, _ = struct.unpack_from("<IIIIIIQQ", dump)
    assert (magic, version, size, pid) == (0x4A695444, 1, 40, os.getpid())
    assert machine in (62, 183)
    at = size
    while at < len(dump):
        kind, total, when = struct.unpack_from("<IIQ", dump, at)
        assert when > 0
        yield kind, dump[at + 16 : at + total]
        at += total
    assert at == len(dump)


def lines_in(content: bytes) -> tuple[int, list[tuple[int, str, int]]]:
    """The address of the code, and the rows (address, file, line), of a record with lines."""
    address, count = struct.unpack_from("<QQ", content)
    at, rows = 16, []
    for _ in range(count):
        place, line, _ = struct.unpack_from("<QII", content, at)
        end = content.index(b"\0", at + 16)
        rows.append((place, content[at + 16 : end].decode(), line))
        at = end + 1
    assert at == len(content)
    return address, rows


def test_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = loaded(plain, tmp_path, monkeypatch)
    (line,) = next(iter(tmp_path.glob("perf-*.map"))).read_text().splitlines()
    address, size, name = line.split()
    assert (int(address, 16), name) == (compiled.function, "tessera::plain")
    assert 64 < int(size, 16) < len(compiled.asm["object"])


def test_lines_and_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = (loaded(k, tmp_path, monkeypatch, 32) for k in (plain, product))
    (dump,) = tmp_path.glob("jit-*.dump")
    found = list(records(dump.read_bytes()))
    assert [kind for kind, _ in found] == [2, 0, 2, 0]
    indices: list[int] = []
    for number, kernel in enumerate((first, second)):
        address, rows = lines_in(found[2 * number][1])
        code = found[2 * number + 1][1]
        pid, _, place, same, size, index = struct.unpack_from("<IIQQQQ", code)
        assert (pid, place, same) == (os.getpid(), address, address)
        indices.append(index)
        name, _, text = code[40:].partition(b"\0")
        assert name.decode() == f"tessera::{kernel.name}"
        assert text == ctypes.string_at(kernel.function, size)
        assert kernel.function == address
        assert all(address <= at < address + size for at, _, _ in rows)
        assert [at for at, _, _ in rows] == sorted(at for at, _, _ in rows)
        assert __file__ in {file for _, file, _ in rows}
        assert all(Path(file).is_file() for _, file, _ in rows)
    assert indices[1] == indices[0] + 1
    seen = {line for _, _, line in lines_in(found[0][1])[1]}
    assert {
        line_of(plain, "tl.load"),
        line_of(doubled, "return"),
        line_of(plain, "tl.store"),
    } <= seen
    seen = {line for _, _, line in lines_in(found[2][1])[1]}
    assert {line_of(product, "tl.dot"), line_of(halved, "tl.store")} <= seen


def test_results_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tessera.runtime.drivers.perf_map.FOLDER", tmp_path)
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    with knobs.cpu.scope():
        knobs.cpu.perf_map = True
        plain[(2,)](x, out, 128, BLOCK=64)
    assert (out == x * 8 - 7).all()


@pytest.mark.parametrize("kernel", [plain, product], ids=lambda k: k.fn.__name__)
@pytest.mark.parametrize("debug", [False, "check"])
def test_lines_leave_the_code_as_it_is(kernel: Any, debug: Any) -> None:
    x = np.ones(256, np.float32)
    compiled = kernel.warmup(x, x, 256, BLOCK=64, grid=(1,), debug=debug)
    lined = object_with_lines(compiled.asm["llir"], compiled.metadata.target.arch)
    plain_code, code = (
        {s.name: s.data for s in sections(image) if s.name.startswith(".text")}
        for image in (compiled.asm["object"], lined)
    )
    assert code == plain_code
    assert any(s.name == ".debug_line" for s in sections(lined))
    assert "!dbg" not in compiled.asm["llir"]


def test_code_without_lines_stays() -> None:
    text = "define i64 @f(i64 %x) {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n!0 = !{}\n"
    assert with_lines(text) == text
