"""Traces of kernels: the records that each back end writes, what is made of them, and that nothing changes without."""

from __future__ import annotations

import json
import linecache
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.__main__ import main
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.compiler import compile as compile_for
from tessera.config import knobs
from tessera.errors import LaunchError
from tessera.profiler.tracing import Trace, traces
from tessera.runtime.drivers.simt import SimtDriver
from tessera.runtime.drivers.traced import FEWEST, MOST, Limits, Recorded, sizes
from tessera.runtime.launching.typed import Timeline
from tests.browser_kit import brightness, browse, needs_browser


@tessera.jit
def product(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    left, right = a + rows[:, None] * K + ks[None, :], b + ks[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(left), tl.load(right), acc)
        left += BK
        right += BK * N
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


@tessera.jit
def rows_of(x, y, n, BLOCK: tl.constexpr):
    """Sums the rows of programs in turn; a loop with a store in it."""
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        at = tl.arange(0, BLOCK)
        tl.store(y + row, tl.sum(tl.load(x + row * BLOCK + at)))


@tessera.jit
def branches(x, n, BLOCK: tl.constexpr):
    i = 0
    while i < n:
        if i % 2 == 0:
            tl.store(x + i * BLOCK + tl.arange(0, BLOCK), i)
        i += 1


def operands(size: int = 128) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((size, size)).astype(np.float16) for _ in range(2))
    return a, b, np.zeros((size, size), np.float32)


def ordered(trace: Timeline) -> None:
    for w in trace.warps:
        assert (np.diff(w.times) >= 0).all()
        assert len(w.times) == len(w.events) + 1


def test_a_trace_on_the_cpu():
    a, b, c = operands()
    trace = product.trace[(2, 2)](a, b, c, 128, 128, BM=64, BN=64, BK=32)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=2e-3, atol=2e-2)
    ordered(trace)
    assert (trace.unit, trace.roles, trace.ctas, trace.launched) == ("s", ("program",), 4, 4)
    spans = list(trace.spans([3]))
    assert [s.name for s in spans] == ["setup", "loop", "store"]
    assert [(s.phase, s.loop > 0) for s in spans[1:]] == [("", False), ("", False)]
    assert 0 < sum(s.seconds for s in spans) < 10
    shown = str(trace)
    assert "4 of 4 CTAs, 4 warps, 8 records, none lost" in shown
    assert f"store (line {spans[2].line})" in shown


def test_iterations_of_a_loop_and_a_ring_that_is_full():
    x, y = np.ones((64, 16), np.float32), np.zeros(64, np.float32)
    trace = rows_of.trace(records=1000)[(2,)](x, y, 64, BLOCK=16)
    assert (y == 16).all()
    assert trace.lost == 0
    names = [s.name for s in trace.spans([1])]
    assert names == ["setup", *["reduce", "store"] * 32]
    short = rows_of.trace(records=16)[(2,)](x, y, 64, BLOCK=16)
    assert short.lost == 2 * (64 - 2 * 16)  # two in each of 16 units
    assert short.records == trace.records
    assert [s.name for s in short.spans([1])] == ["reduce", "store"] * 16  # the latest ones
    assert f"{short.lost} of {short.records} records lost" in str(short)
    few = rows_of.trace(ctas=1)[(4,)](x, y, 64, BLOCK=16)
    assert (few.ctas, few.launched, {w.cta for w in few.warps}) == (1, 4, {0})
    ordered(few)


@tessera.jit
def many_steps(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    first = tl.sum(tl.load(x + at))
    tl.store(y + n + 4, first)
    tl.atomic_add(y + n, first)
    for row in range(n):
        total = tl.sum(tl.load(x + row * BLOCK + at))
        for i in tl.static_range(4):
            tl.store(y + row, total)
            tl.atomic_add(y + n + i, total)


@pytest.mark.parametrize("records", [2, 4, 16, 64])
def test_runs_of_records_that_pass_the_end_of_the_ring(records: int):
    """Nine records an iteration are two units, of seven and two: with three records in front of the loop, every other
    run's second unit is stored behind the ring."""
    x, y = np.ones((30, 16), np.float32), np.zeros(35, np.float32)
    names = ["reduce", "store", "atomic", *["reduce", *["store", "atomic"] * 4] * 30]
    sizes = [3, *[7, 2] * 30]
    with knobs.runtime.scope():
        for interpret in (False, True):
            knobs.runtime.interpret = interpret
            kernel = tessera.jit(many_steps.fn)
            trace = kernel.trace(records=records)[(1,)](x, y, 30, BLOCK=16)
            kept = sum(sizes[-records:])
            assert [s.name for s in trace.spans() if s.name != "setup"] == names[-kept:]
            assert (trace.records, trace.lost) == (273, 273 - kept)
            ordered(trace)


def test_a_run_has_no_more_records_than_there_is_room_for():
    source = "\n".join(
        f"    tl.atomic_add(y + {i}, 1.0)\n    tl.store(y, {i}.0)" for i in range(20)
    )
    space: dict[str, Any] = {"tl": tl}
    text = f"def many(y):\n{source}\n"
    linecache.cache["many.py"] = (len(text), None, text.splitlines(True), "many.py")
    exec(compile(text, "many.py", "exec"), space)
    trace = tessera.jit(space["many"]).trace(records=8)[(1,)](np.zeros(20, np.float32))
    assert [s.name for s in trace.spans() if s.name != "setup"] == ["atomic", "store"] * 20
    assert (trace.records, trace.lost) == (40, 0)  # in units of seven, five of them


def test_branches_and_while_loops_carry_the_count():
    x = np.full((5, 8), -1, np.int32)
    trace = branches.trace[(1,)](x, 5, BLOCK=8)
    assert x[:, 0].tolist() == [0, -1, 2, -1, 4]
    assert [s.name for s in trace.spans()] == ["setup", "store", "store", "store"]


def test_a_trace_is_that_of_the_interpreter():
    """The same records in the same order, by a clock that counts."""
    expected = [s[:3] + s[4:8] for s in rows_of.trace[(3,)](*arrays(), 8, BLOCK=16).spans()]
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        interpreted = tessera.jit(rows_of.fn)
    trace = interpreted.trace[(3,)](*arrays(), 8, BLOCK=16)
    assert trace.unit == "records"
    assert [s[:3] + s[4:8] for s in trace.spans()] == expected
    assert all(s.seconds == 1 for s in trace.spans())


def arrays() -> tuple[Any, Any]:
    return np.ones((8, 16), np.float32), np.zeros(8, np.float32)


def test_roles_of_a_specialised_loop_on_the_simulator():
    a, b, c = operands()
    tessera.runtime.driver.set_active(SimtDriver())
    try:
        trace = product.trace[(1, 1)](a, b, c, 128, 128, BM=128, BN=128, BK=32, num_warps=8)
        again = product.trace[(1, 1)](a, b, c, 128, 128, BM=128, BN=128, BK=32, num_warps=8)
    finally:
        tessera.runtime.driver.reset_active()
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=2e-3, atol=2e-2)
    ordered(trace)
    assert trace.unit == "steps"
    assert trace.roles == ("consumer", "producer")
    assert [w.number for w in trace.warps] == list(range(9))  # eight consumers, one producer
    names = {role: {s.name for s in trace.spans() if s.role == role} for role in trace.roles}
    assert names["producer"] == {"setup", "wait for a free buffer", "issue copies"}
    assert names["consumer"] >= {
        "wait for data",
        "issue MMAs",
        "wait for MMAs",
        "store",
    }
    iterations = [s for s in trace.spans() if s.warp == 0 and s.name == "issue MMAs"]
    assert len(iterations) == 4
    assert {s.phase for s in iterations} == {"loop"}
    assert list(trace.spans()) == list(again.spans())  # the simulator's clock is deterministic


def test_a_traced_build_for_hopper_keeps_its_form():
    """It assembles without spills or serialised MMAs, and with the same MMAs; without the option nothing is traced."""
    pytest.importorskip("tessera.backends.nvidia.ptxas")
    pointers = dict.fromkeys("abc", "*fp16") | {"c": "*fp32"}
    constants = {"BM": 128, "BN": 256, "BK": 64}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(5)}
    source = ASTSource(product, {**pointers, "N": "i32", "K": "i32"}, constants, attrs)
    target, options = GPUTarget("cuda", 90, 32), {"num_warps": 8, "num_stages": 3}
    plain = compile_for(source, target, options)
    traced = compile_for(source, target, {**options, "instrumentation_mode": "trace"})
    assert "%clock" not in plain.asm["ptx"]
    assert not hasattr(plain.metadata, "trace")
    assert traced.metadata.spills == plain.metadata.spills
    assert traced.asm["ptx"].count("wgmma.mma_async") == plain.asm["ptx"].count("wgmma.mma_async")
    assert not [r for r in traced.metadata.remarks if "C75" in r]
    assert traced.asm["ptx"].count("%clock;") >= len(traced.metadata.trace)


def test_clocks_of_sms_are_put_on_one_time_line():
    """Two SMs whose clocks differ by a constant, with times in steps of 32 ns: both warps begin 100 ns apart. Records
    have half of the clock, which begins anew in one of them."""
    trace = product.trace[(1, 1)](*operands(), 128, 128, BM=128, BN=128, BK=32)
    kernel = trace.kernel
    words = np.zeros((2, 8 + 4 * 2 + 4), np.uint64)
    for row, (clock, start) in enumerate(((1000, 0), ((7 << 32) - 2000, 100))):
        time = [5_000_000 + (start + t) // 32 * 32 for t in (0, 10_000)]
        words[row, :7] = [
            kernel.metadata.trace_tag << 32 | row,
            clock,
            time[0],
            0,
            1 << 32 | 1,
            clock + 15_000,
            time[1],
        ]
        words[row, 8] = (clock + 3000 & 0xFFFFFFFF) << 32 | 1 << 16 | 1
    found = Trace(Recorded(kernel, (2, 1, 1), words, 1, 2, 2, "cycles"))
    first, second = found.warps
    assert first.times[0] == 0
    np.testing.assert_allclose(second.times[0], 100e-9, atol=33e-9)
    np.testing.assert_allclose(np.diff(first.times), [2000e-9, 8000e-9], rtol=5e-3)


def test_what_fits():
    assert sizes(Limits(), 16, 1) == (MOST, 16)
    assert sizes(Limits(records=100, ctas=3), 16, 12) == (128, 3)
    units, ctas = sizes(Limits(), 1 << 20, 8)
    assert (units, ctas * 8 * (4 * units + 12) * 8 <= 64 << 20) == (FEWEST, True)
    assert sizes(Limits(), 1000, 12)[1] == 1000


def test_files(tmp_path: Path):
    x, y = np.ones((64, 16), np.float32), np.zeros(64, np.float32)
    trace = rows_of.trace[(4,)](x, y, 64, BLOCK=16)
    events = json.loads(trace.save(tmp_path / "t.json").read_text())["traceEvents"]
    phases = [e for e in events if e.get("cat") == "phase"]
    assert len(phases) == 4
    assert {e["args"]["iterations"] for e in phases} == {16}
    inside = [e for e in events if e.get("cat") == "program"]
    assert len(inside) == 4 * (1 + 32)
    assert all(e["dur"] >= 0 for e in inside)
    for e in phases:  # phases enclose the activities of their CTA
        own = [x for x in inside if x["args"]["cta"] == e["args"]["cta"] and x["name"] != "setup"]
        assert min(x["ts"] for x in own) == pytest.approx(e["ts"])
        assert max(x["ts"] + x["dur"] for x in own) == pytest.approx(e["ts"] + e["dur"])
    html = trace.save(tmp_path / "t.html").read_text()
    assert "<canvas>" in html
    assert "http" not in html.replace("http-equiv", "")  # nothing comes from elsewhere
    assert trace.save(tmp_path / "t.txt").read_text() == str(trace)


@pytest.mark.usefixtures("without_triton")
def test_a_program_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script, page = tmp_path / "script.py", tmp_path / "page.html"
    source = Path(__file__).read_text().partition("def rows_of")[2].partition("\n\n\n")[0]
    script.write_text(
        "import numpy as np, tessera, tessera.language as tl\n@tessera.jit\ndef rows_of" + source
        + "\nx, y = np.ones((64, 16), np.float32), np.zeros(64, np.float32)\n"
        "for _ in range(2):\n    rows_of[(4,)](x, y, 64, BLOCK=16)\nassert (y == 16).all()\n"
    )  # fmt: skip
    assert main(["profile", "--timeline", str(page), str(script)]) == 0
    assert ", grid (4, 1, 1): 4 of 4 CTAs" in capsys.readouterr().out
    assert "<canvas>" in page.read_text()
    assert main(["profile", "--timeline", str(page), "--kernel", "other", str(script)]) == 1
    assert "no launch of other was traced; traced: rows_of" in capsys.readouterr().err
    assert knobs.compilation.instrumentation_mode == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kernel", "k"], "give --timeline FILE"),
        (["--timeline", "t.html", "--counts"], "--trace and --counts would not time"),
        (["--timeline", "none/t.html"], "none, which does not exist"),
    ],
)
def test_options_that_do_nothing_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        main(["profile", *options, "script.py"])
    assert said in capsys.readouterr().err


def test_traced_builds_choose_no_config(monkeypatch: pytest.MonkeyPatch):
    configs = [tessera.Config({"BLOCK": 16}, num_warps=n) for n in (1, 2)]
    tuned, modes = tessera.autotune(configs=configs, key=["n"])(rows_of), set[object]()
    monkeypatch.setattr(
        tuned,
        "do_bench",
        lambda f, **_: modes.add(knobs.compilation.instrumentation_mode) or [1.0] * 3,
    )
    with knobs.compilation.scope(), traces() as found:
        knobs.compilation.instrumentation_mode = "trace"
        tuned[(4,)](np.ones((64, 16), np.float32), np.zeros(64, np.float32), 64)
    assert list(found.last) == ["rows_of"]
    assert modes == {""}


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser(tmp_path: Path):
    x, y = np.ones((64, 16), np.float32), np.zeros(64, np.float32)
    trace = rows_of.trace[(4,)](x, y, 64, BLOCK=16)
    path = trace.save(tmp_path / "t.html")
    document = browse(path, "--dump-dom")
    height = re.search(r'<canvas[^>]* height="(\d+)"', document)
    assert height is not None
    assert int(height[1]) >= 4 * 26  # a row for each program
    assert 'style="background: rgb(' in document  # the legend
    found: list[float] = []
    for theme in ("light", "dark"):
        picture = tmp_path / f"{theme}.png"
        page = tmp_path / f"{theme}.html"
        page.write_text(path.read_text().replace("<html ", f'<html data-theme="{theme}" '))
        browse(page, f"--screenshot={picture}")
        found.append(brightness(picture.read_bytes()))
    assert found[0] > 200 > 60 > found[1]


def test_autotuned_and_checked_kernels():
    configs = [tessera.Config({"BLOCK": 16}, num_warps=n) for n in (1, 2)]
    tuned = tessera.autotune(configs=configs, key=["n"])(rows_of)
    x, y = np.ones((64, 16), np.float32), np.zeros(64, np.float32)
    assert tuned.trace[(4,)](x, y, 64).roles == ("program",)
    with pytest.raises(LaunchError, match="nothing was traced"):
        rows_of.trace[(4,)](x, y, 64, BLOCK=16, debug="check")
    with pytest.raises(LaunchError, match="records of 1 or more"):
        rows_of.trace(records=0)
    without_grid: Any = rows_of.trace
    with pytest.raises(LaunchError, match="got ndarray"):
        without_grid(x, y)
    with pytest.raises(LaunchError, match="CTA 7 of rows_of was not recorded"):
        tuned.trace[(4,)](x, y, 64).save("t.html", ctas=[0, 7])


def test_launches_of_other_threads_are_not_taken():
    x, y = np.ones((64, 16), np.float32), np.zeros(64, np.float32)

    def traced(ctas: int) -> list[tuple[int, ...]]:
        return [rows_of.trace[(ctas,)](x, y, 64, BLOCK=16).grid for _ in range(20)]

    traced(1)
    with ThreadPoolExecutor(2) as pool:
        for ctas, grids in zip((1, 3), pool.map(traced, (1, 3)), strict=True):
            assert set(grids) == {(ctas, 1, 1)}
