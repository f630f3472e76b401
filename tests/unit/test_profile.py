"""`tessera.profile`: launches by scope and kernel, traces, the command, proton's interface."""

# pyright: basic
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.__main__ import main
from tessera.compiler.kernel import LazyDict
from tessera.config import knobs
from tessera.errors import TesseraError
from tessera.runtime.driver import driver_named


def declared(grid, metadata, args):
    return {"name": f"scale_{args['n']}", "bytes": 8 * args["n"], "flops32": args["n"]}


@tessera.jit(launch_metadata=declared)
def scale(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2.0 * tl.load(x + at, at < n), at < n)


@tessera.jit
def plain(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2.0 * tl.load(x + at, at < n), at < n)


def run(kernel, n=1000):
    kernel[(tessera.cdiv(n, 256),)](np.ones(n, np.float32), n, BLOCK=256)


def test_launches_have_time_scopes_and_what_kernels_declare():
    run(scale)  # compiled, and started by native code
    with tessera.profile() as p:
        run(scale)
        with p.scope("outer"), tessera.profile.scope("inner", items=3):
            run(scale)
            run(plain)
    run(scale)
    assert [(x.kernel, x.scopes) for x in p.launches] == [
        ("scale_1000", ()),
        ("scale_1000", ("outer", "inner")),
        ("plain", ("outer", "inner")),
    ]
    assert p.launches[0].metrics == {"bytes": 8000, "flops32": 1000}
    assert all(0 < x.seconds < 1 for x in p.launches)
    root = p.tree()
    assert root.launches == 3
    assert root.inside["outer"].inside["inner"].metrics["items"] == 3
    assert root.seconds == pytest.approx(sum(x.seconds for x in p.launches))
    assert not knobs.runtime.launch_enter_hook
    assert not knobs.runtime.launch_exit_hook
    shown = str(p)
    assert "scale_1000" in shown
    assert "items=3" in shown


def test_other_hooks_stay():
    seen = []
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook.add(seen.append)
        with tessera.profile() as p:
            run(plain)
        run(plain)
    assert (len(seen), len(p.launches)) == (2, 1)


def test_hooks_may_change_during_a_launch():
    """What another thread does by starting or ending a profile: the launch that runs ends with the hook it began
    with."""
    seen = []

    def enter(metadata):
        seen.append("enter")
        knobs.runtime.launch_enter_hook = knobs.runtime.launch_exit_hook = None
        run(plain)  # without hooks, by the same entry of native code

    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = lambda metadata: changing[-1](metadata)
        knobs.runtime.launch_exit_hook = lambda metadata: seen.append("leave")
        changing = [lambda metadata: None]
        run(plain)  # native code starts the next one
        del seen[:]
        changing.append(enter)
        run(plain)
    assert seen == ["enter", "leave"]


def test_a_launch_that_began_before_the_profile_is_left_out():
    with tessera.profile() as p:
        knobs.runtime.launch_exit_hook(LazyDict({}))
    assert p.launches == []


def test_counts_are_those_of_explain():
    with tessera.profile(counts=True) as p:
        run(plain)
        run(plain)
    assert [x.metrics for x in p.launches] == [{"bytes": 8000, "flops": 1024}] * 2


def test_a_profile_runs_once_at_a_time():
    with tessera.profile() as p, pytest.raises(TesseraError, match="running already"), p:
        pass


def test_a_trace_has_kernels_and_scopes(tmp_path: Path):
    with tessera.profile() as p, p.scope("part"):
        run(plain)
    events = json.loads(p.save(tmp_path / "trace.json").read_text())["traceEvents"]
    part, kernel = (next(e for e in events if e["name"] == name) for name in ("part", "plain"))
    assert part["ts"] <= kernel["ts"]
    assert kernel["ts"] + kernel["dur"] <= part["ts"] + part["dur"]
    assert kernel["args"]["scopes"] == "part"


SCRIPT = """\
import numpy as np, tessera, tessera.language as tl
@tessera.jit
def double(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at))
for _ in range(3):
    double[(1,)](np.ones(64, np.float32), BLOCK=64)
"""


def test_the_command(tmp_path: Path, capsys):
    script, trace = tmp_path / "prog.py", tmp_path / "t.json"
    script.write_text(SCRIPT)
    assert main(["profile", "--trace", str(trace), str(script)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.endswith("double"))
    assert row.split()[2] == "3"
    assert sum(e["name"] == "double" for e in json.loads(trace.read_text())["traceEvents"]) == 3
    assert main(["profile"]) == 2


def test_proton_sessions_write_trees(tmp_path: Path):
    script = tmp_path / "prog.py"
    script.write_text(
        "import triton.profiler as proton\n"
        "session = proton.start('found', hook='triton')\n"
        "proton.enter_scope('layer')\n"
        + SCRIPT.replace("for _", "with proton.scope('part', {'items': 2}):\n  for _")
        + "proton.exit_scope()\n"
        "proton.deactivate(session)\n"
        "double[(1,)](np.ones(64, np.float32), BLOCK=64)\n"
        "proton.finalize()\n"
    )  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "tessera", "run", script.name],
        cwd=tmp_path,
        check=True,
        env=_environment(),
    )
    root, about = json.loads((tmp_path / "found.hatchet").read_text())
    (layer,) = root["children"]
    (part,) = layer["children"]
    (kernel,) = part["children"]
    assert [x["frame"]["name"] for x in (root, layer, part, kernel)] == [
        "ROOT",
        "layer",
        "part",
        "double",
    ]
    assert part["metrics"] == {"items": 2}
    assert kernel["metrics"]["count"] == 3
    assert kernel["metrics"]["time (ns)"] > 0
    assert about


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_torch_sees_kernels_by_name():
    torch = pytest.importorskip("torch")
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen,
        tessera.profile(),
    ):
        run(plain)
    assert "plain" in {e.name for e in seen.events()}


def test_perf_knows_the_names_of_kernels(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("tessera.runtime.drivers.perf_map.FOLDER", tmp_path)
    compiled = plain.warmup(np.ones(8, np.float32), 8, BLOCK=8, grid=(1,))
    with knobs.cpu.scope():
        knobs.cpu.perf_map = True
        compiled.load(driver_named("cpu"))
    (line,) = next(iter(tmp_path.glob("perf-*.map"))).read_text().splitlines()
    address, size, name = line.split()
    assert (int(address, 16), name) == (compiled.function, "tessera::plain")
    assert 64 < int(size, 16) < len(compiled.asm["object"])
