"""`kernel.explain`: counts against numbers worked out by hand, the simulator, ptxas and the disassembler."""

# pyright: basic
from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.__main__ import main
from tessera.analysis.reports import Report
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import ptxas
from tessera.compiler.kernel import CompiledKernel
from tessera.config import knobs
from tessera.errors import TesseraError, ToolNotFound
from tessera.runtime.driver import driver
from tessera.tools.explain import Seen
from tessera.tools.tensor_descriptor import TensorDescriptor

A100, H100 = GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)


@tessera.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, at < n) + tl.load(y + at, at < n)
    tl.store(out + at, total, at < n)


@tessera.jit
def spread(x, out, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at * STEP))


@tessera.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * BN + n[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * BN + n[None, :], acc)


@tessera.jit
def turned(x, out, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.trans(tl.load(x + i * N + j)))


@tessera.jit
def counted(lengths, x, out):
    row = tl.program_id(0)
    total = 0.0
    for i in range(tl.load(lengths + row)):
        total += tl.load(x + i)
    tl.store(out + row, total)


def line_of(report: Report, text: str):
    (found,) = [x for x in report.lines if text in x.source]
    return found


def access_of(report: Report, what: str):
    (found,) = [a for x in report.lines for a in x.accesses if a.what == what]
    return found


# --- counts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [None, H100], ids=["cpu", "sm90"])
def test_bytes_and_operations_are_those_of_the_launch(target):
    n = 10_000
    x, y, out = (np.zeros(n, np.float32) for _ in range(3))
    report = add.explain(x, y, out, n, BLOCK=1024, grid=(10,), target=target)
    loads, stores = line_of(report, "total = "), line_of(report, "tl.store")
    assert (loads.loaded, loads.stored, loads.flops) == (8 * n, 0, 10 * 1024)
    assert (stores.loaded, stores.stored) == (0, 4 * n)
    assert report.roofline.bytes_requested == report.roofline.bytes_of_memory == 12 * n
    assert report.walked == report.programs == 10
    assert not out.any()  # nothing ran


def test_counts_of_few_programs_stand_for_the_grid():
    n = 1_000_000
    x, y, out = (np.zeros(n, np.float32) for _ in range(3))
    report = add.explain(
        x, y, out, n, BLOCK=1024, grid=lambda meta: (tessera.cdiv(n, meta["BLOCK"]),)
    )
    assert report.walked < report.programs == 977
    assert line_of(report, "tl.store").stored == pytest.approx(4 * n, rel=1e-3)


@pytest.mark.parametrize(("target", "K"), [(None, 512), (A100, 512), (H100, 512), (None, 64 * 300)])
def test_a_product_in_a_loop(target, K):
    a, b = np.zeros((64, K), np.float16), np.zeros((K, 64), np.float16)
    c = np.zeros((64, 64), np.float32)
    report = product.explain(a, b, c, K, 64, 64, 64, grid=(1,), target=target)
    assert line_of(report, "acc = tl.dot").flops == 2 * 64 * 64 * K
    assert line_of(report, "x = tl.load").loaded == pytest.approx(2 * 64 * K)
    loop = next(x for x in report.schedule.loops if x.trips > 1)
    assert loop.trips == pytest.approx(K // 64)
    assert bool([n for n in report.notes if "loops of more" in n]) == (K > 5000)


def test_loops_whose_length_is_in_memory_are_counted_with_the_data():
    lengths, x, out = np.array([3, 5], np.int32), np.zeros(8, np.float32), np.zeros(2, np.float32)
    report = counted.explain(lengths, x, out, grid=(2,))
    assert access_of(report, "load x").bytes == 4 * 8
    assert line_of(report, "total += ").flops == 8
    assert report.notes == []


def test_what_only_memory_knows_is_said_to_be_unknown():
    mock = (
        tessera.MockTensor(tl.int32),
        tessera.MockTensor(tl.float32),
        tessera.MockTensor(tl.float32),
    )
    report = counted.explain(*mock, grid=(2,))
    assert any("taken as 0" in note for note in report.notes)


# --- coalescing and banks -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("step", "sectors"), [(1, 4), (2, 8), (8, 32), (64, 32)])
def test_sectors_of_a_request_are_those_that_its_lanes_touch(step, sectors):
    x, out = np.zeros(64 * 32, np.float32), np.zeros(32, np.float32)
    base = (
        x.ctypes.data % 128
    )  # a request of 128 bytes touches one sector more if it starts in the middle of one
    report = spread.explain(x, out, step, 32, grid=(1,), target=H100, num_warps=1)
    load = access_of(report, "load x")
    expected = len({(base + 4 * step * lane) // 32 for lane in range(32)})
    assert load.requests == 1
    assert load.sectors == expected
    assert abs(expected - sectors) <= 1
    assert load.ideal == 4


@pytest.mark.parametrize(("step", "part"), [(1, 1), (4, 4), (8, 8), (16, 8)])
@pytest.mark.parametrize("target", [None, H100])
def test_memory_gives_whole_sectors(step, part, target):
    x, out = np.zeros(4096 * step, np.float32), np.zeros(4096, np.float32)
    report = spread.explain(x, out, step, 4096, grid=(1,), target=target)
    assert report.roofline.bytes_requested == 2 * 4 * 4096
    whole = 4 * 4096 * (part if target else step)  # a CPU's lines have 64 bytes
    assert report.roofline.bytes_of_memory == pytest.approx(whole + 4 * 4096, rel=0.01)
    said = [x.what for x in report.remarks if "for each request" in x.what]
    assert all(("sectors for" if target else "lines for") in x for x in said)
    assert len(said) == (step > 1)


@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize("capability", [80, 90])
def test_passes_over_the_banks_are_those_that_the_simulator_counts(n, capability, simulated):
    knobs.simulator.capability = capability
    for kernel, args, others in (
        (turned, [np.zeros((n, n), np.float32), np.zeros((n, n), np.float32)], {"N": n}),
        (product, [np.zeros((n, 128), np.float16), np.zeros((128, n), np.float16), np.zeros((n, n), np.float32), 128],
         {"BM": n, "BN": n, "BK": 32}),
    ):  # fmt: skip
        compiled = kernel[(1,)](*args, **others, num_warps=1 if kernel is turned else 2)
        seen = compiled.simulation.banks.values()
        report = compiled.explain(*args, *others.values())
        assert "wgmma" not in compiled.asm["gir"]
        # The simulator does not count what asynchronous copies write.
        lines = [x for x in report.lines if not any(a.what.startswith("copy") for a in x.accesses)]
        assert sum(x.bank_passes for x in lines) == sum(t.passes for t in seen)
        assert sum(x.bank_conflicts for x in lines) == sum(t.conflicts for t in seen)
        assert kernel is turned or sum(x.bank_passes for x in lines) > 0


@pytest.fixture
def simulated():
    with knobs.simulator.scope():
        knobs.simulator.banks = True
        driver.set_active("simt")
        yield
        driver.reset_active()


def test_the_variant_that_was_compiled_is_explained(simulated) -> None:
    again = tessera.jit(product.fn)  # kernels keep the target of their first launch
    n = 128
    args = [
        np.zeros((n, 256), np.float16),
        np.zeros((256, n), np.float16),
        np.zeros((n, n), np.float32),
        256,
    ]
    for maps, copies in ((True, "TMA"), (False, "cp.async")):
        compiled = again.warmup(
            *args, n, n, 64, grid=(1,), num_warps=8, num_stages=3, pointer_maps=maps
        )
        assert ("tensor_copy" in compiled.asm["gir"]) == maps
        report = compiled.explain(*args, grid=(1,))
        assert copies in [x.copies for x in report.schedule.loops]


# --- machine code ---------------------------------------------------------------------------------------------------
def big_product() -> Report:
    a = np.zeros((128, 256), np.float16)
    return product.explain(
        a, a, np.zeros((128, 256), np.float32), 256, 128, 256, 64, grid=(1,), target=A100
    )


def test_spills_by_line_are_those_of_the_disassembler():
    a = np.zeros((128, 256), np.float16)
    report = big_product()
    kernel = tessera.compile(
        product.warmup(a, a, np.zeros((128, 256), np.float32), 256, 128, 256, 64, grid=(1,)).src,
        A100,
    )
    try:
        sass = ptxas.disassemble(kernel.asm["cubin"])
    except ToolNotFound:
        pytest.skip("there is no disassembler")
    assert report.spills == kernel.metadata.spills > 0
    assert sum(x.spills for x in report.lines) == len(re.findall(r"\b(?:STL|LDL)\b", sass)) > 0
    counted = len(re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/", sass, re.M))
    assert 0.9 * counted <= report.instructions <= counted
    assert line_of(report, "acc = tl.dot").kinds["matrix instructions"] == len(
        re.findall(r"\bHMMA", sass)
    )


def test_registers_by_line_are_those_of_the_disassembler():
    a = np.zeros((128, 256), np.float16)
    c = np.zeros((128, 256), np.float32)
    kernel = tessera.compile(product.warmup(a, a, c, 256, 128, 256, 64, grid=(1,)).src, A100)
    try:
        listing = ptxas.disassemble(kernel.asm["cubin"], ["-lrm", "count"])
    except TesseraError:
        pytest.skip("there is no nvdisasm")
    live = [int(n) for n in re.findall(r"\*/ .*?// \| +(\d+) ", listing)]
    report = big_product()
    assert max(x.registers for x in report.lines) == max(live) > 200
    assert line_of(report, "acc = tl.dot").registers > line_of(report, "tl.arange").registers > 0
    assert all(x.registers <= report.registers for x in report.lines)
    (remark,) = [r for r in report.remarks if "spill" in r.what]
    assert "registers are live in line" in remark.reason


def test_spills_are_remarked_with_a_remedy():
    (remark,) = [r for r in big_product().remarks if "spill" in r.what]
    assert "smaller tiles" in remark.remedy


def test_occupancy_names_what_bounds_it():
    a = np.zeros((128, 256), np.float16)
    report = product.explain(
        a,
        a,
        np.zeros((128, 256), np.float32),
        256,
        128,
        256,
        64,
        grid=(1000,),
        target=H100,
        num_warps=8,
    )
    o = report.occupancy
    assert o is not None
    assert o.ctas == min(o.limits.values())
    assert all(o.limits[name] == o.ctas for name in o.bound)
    assert o.waves == pytest.approx(1000 / (132 * o.ctas))
    total = max(b.offset + b.bytes for b in report.buffers)
    assert total == report.shared_bytes


def test_the_schedule_of_a_pipelined_loop():
    a = np.zeros((128, 4096), np.float16)
    report = product.explain(
        a,
        a,
        np.zeros((128, 128), np.float32),
        4096,
        128,
        128,
        64,
        grid=(1,),
        target=H100,
        num_warps=4,
    )
    loop = next(x for x in report.schedule.loops if x.trips == 64)
    assert loop.stages >= 3
    assert loop.copies in ("TMA", "cp.async")
    assert {b.name for b in report.buffers} >= {"x", "y"}


# --- remarks and forms ----------------------------------------------------------------------------------------------
def test_a_narrow_access_says_why_and_what_to_do():
    x = np.zeros(1000, np.float32)
    report = add.explain(x, x, np.zeros(1000, np.float32), 999, BLOCK=1024, grid=(1,), target=H100)
    found = [r for r in report.remarks if r.what.startswith("store out")]
    assert "argument `n`" in found[0].reason
    assert "multiple_of" in found[0].remedy


def test_rows_that_begin_within_a_line_are_not_called_scattered_alone():
    """Sixteen neighbours of four bytes are in one line of 64 bytes, or in two."""
    memory = np.zeros(64, np.float32)
    first = -memory.ctypes.data % 64 // 4
    for shift, remarked in ((0, False), (4, True)):
        x = memory[first + shift : first + shift + 16]
        report = spread.explain(x, np.zeros(16, np.float32), STEP=1, BLOCK=16, grid=(1,))
        found = [r for r in report.remarks if r.what.startswith("load x")]
        assert bool(found) == remarked
        assert all("begin within a line" in r.reason and "aligned" in r.remedy for r in found)


def test_the_json_form_has_its_schema():
    x = np.zeros(64, np.float32)
    report = add.explain(x, x, x.copy(), 64, BLOCK=64, grid=(1,))
    data = json.loads(report.json())
    assert (data["schema"], data["version"]) == ("tessera.explain", 1)
    assert set(data) == {
        "schema", "version", "kernel", "target", "grid", "options", "programs", "walked", "lines", "buffers",
        "shared_bytes", "registers", "spills", "instructions", "code", "occupancy", "schedule", "roofline", "remarks",
        "notes", "applied", "layouts", "ir",
    }  # fmt: skip
    assert data["lines"][1]["source"].strip().startswith("at = tl.program_id")


def test_levels_point_to_source_lines():
    x = np.zeros(64, np.float32)
    for target, levels in ((None, {"tir", "llir", "asm"}), (H100, {"tir", "gir", "ptx"})):
        report = add.explain(x, x, x.copy(), 64, BLOCK=64, grid=(1,), target=target)
        assert levels <= set(report.ir)
        text, lines = report.ir["tir"]
        stores = [lines[i] for i, code in enumerate(text.splitlines()) if " store " in code]
        assert [report.lines[i].source.strip()[:8] for i in stores] == ["tl.store"]
        assert all(len(t.splitlines()) == len(at) for t, at in report.ir.values())


def test_a_measured_launch_and_a_compiled_kernel():
    x = np.zeros(1 << 16, np.float32)
    report = add.explain(x, x, x.copy(), 1 << 16, BLOCK=1024, grid=(64,), measure=True)
    assert report.roofline.measured is not None
    assert 0 < report.roofline.measured < 1
    compiled = add.warmup(x, x, x.copy(), 1 << 16, BLOCK=1024, grid=(64,))
    assert "no arguments were given" in str(compiled.explain())
    assert (
        line_of(compiled.explain(x, x, x, 1 << 16, 1024, grid=(64,)), "tl.store").stored == 4 << 16
    )


def test_a_tuned_kernel_is_explained_with_its_config():
    tuned = tessera.autotune([tessera.Config({"BLOCK": 128})], key=["n"])(add)
    x = np.zeros(256, np.float32)
    report = tuned.explain(
        x, x, x.copy(), 256, grid=lambda meta: (tessera.cdiv(256, meta["BLOCK"]),)
    )
    assert report.programs == 2


@pytest.mark.usefixtures("without_triton")
def test_the_command_explains_what_a_program_launches(tmp_path: Path, capsys):
    script = tmp_path / "prog.py"
    script.write_text(
        "import numpy as np, tessera, tessera.language as tl\n"
        "@tessera.jit\n"
        "def double(x, n, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)\n"
        "x = np.ones(100, np.float32)\n"
        "for _ in range(3): double[(1,)](x, 100, BLOCK=128)\n"
    )
    assert main(["explain", f"{script}:double"]) == 0
    said = capsys.readouterr().out
    assert "double for cpu" in said
    assert "measured" in said
    assert "launched it 3 times" in said
    page, data = tmp_path / "page.html", tmp_path / "report.json"
    assert (
        main(
            ["explain", "--target", "sm_90", "--html", str(page), "--json", str(data), str(script)]
        )
        == 0
    )
    assert json.loads(data.read_text())[0]["target"] == "cuda:90"
    assert "<svg" in page.read_text() or "double" in page.read_text()
    assert main(["explain", f"{script}:other"]) == 1
    assert "no kernel named other" in capsys.readouterr().err
    assert main(["explain"]) == 2


@pytest.mark.parametrize(
    ("backend", "times", "shortest"),
    [("cpu", [3.0], None), ("cuda", [3.0], 3.0), ("cpu", [3.0, 2.0, 4.0], 2.0), ("cuda", [], None)],
)  # fmt: skip
def test_what_the_command_shows_as_measured(
    backend: str, times: list[float], shortest: float | None
):
    """A CPU's first launch starts threads; launches that a graph captures have no times."""
    kernel = cast("CompiledKernel", SimpleNamespace(target=GPUTarget(backend, 90, 32)))
    seen = Seen(kernel, (1, 1, 1), [], launches=max(1, len(times)), seconds=times)
    assert seen.shortest == shortest


@tessera.jit
def crowded(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + at)
    y = tl.exp(x) - tl.sum(x, 1)[:, None]  # the sum's spills lie in lines of another file
    tl.store(out_ptr + at, x * y)


def test_every_spill_of_the_machine_code_has_a_line():
    x = np.zeros((32, 128), np.float32)
    report = crowded.explain(
        x, x, ROWS=32, COLUMNS=128, num_warps=1, maxnreg=64, grid=(1,), target=H100
    )
    assert report.spills > 0
    assert len({x.file for x in report.lines if x.spills}) > 1
    assert sum(x.instructions for x in report.lines) == report.instructions


@tessera.jit
def copy_block(x_desc, out_desc):
    out_desc.store([0, 0], x_desc.load([0, 0]))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(64, 64, np.float16), (128, 32, np.float32)]
)
def test_blocks_pass_over_the_banks_on_their_way_to_the_tma_unit(rows, columns, dtype, simulated):
    knobs.simulator.capability = 90
    again = tessera.jit(copy_block.fn)  # kernels keep the target of their first launch
    blocks = [
        TensorDescriptor.from_tensor(np.zeros((rows, columns), dtype), [rows, columns])
        for _ in range(2)
    ]
    compiled = again[(1,)](*blocks)
    seen = compiled.simulation.banks.values()
    report = compiled.explain(*blocks, grid=(1,))
    assert sum(x.bank_passes for x in report.lines) == sum(t.passes for t in seen) > 0
    assert sum(x.bank_conflicts for x in report.lines) == sum(t.conflicts for t in seen)
