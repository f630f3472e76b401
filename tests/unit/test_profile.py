"""`tessera.profile`: launches by scope and kernel, traces, the command, proton's interface."""

# pyright: basic
from __future__ import annotations

import ctypes
import itertools
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
from tessera.profiler import blocks


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


def test_more_launches_than_a_block_has_rows(monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 8)
    run(plain)
    with tessera.profile() as p:
        for i in range(15):
            with p.scope(str(i)):
                run(plain, 256 * (i + 1))
                run(plain, 256 * (i + 1))
    expected = [((i + 1, 1, 1), (str(i),)) for i in range(15) for _ in range(2)]
    assert [(x.grid, x.scopes) for x in p.launches] == expected
    assert all(a.start <= b.start for a, b in itertools.pairwise(p.launches))
    assert all(0 < x.seconds < 1 for x in p.launches)
    with p:  # goes on
        run(plain)
    assert (len(p.launches), p.launches[-1].scopes) == (31, ())


class Events:
    """A GPU's events: `ready` tells how many launches have finished; a launch takes as many ms as its number says."""

    def __init__(self):
        self.made, self.ready, self.waited, self.captured = 0, 0, [], set()
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_int64, ctypes.c_int64
        )
        self.elapsed = kind(self.read)

    def current_context(self):
        return 7

    def address(self, name):
        elapsed = ctypes.cast(self.elapsed, ctypes.c_void_p).value
        return {"cuEventElapsedTime": elapsed, "cuEventRecord": 0xBAD}[name]

    def event_create(self):
        self.made += 1
        return self.made - 1

    def event_synchronize(self, event):
        self.waited.append(event)
        self.ready = max(self.ready, event // 2 + 1)

    def read(self, out, first, last):
        assert last == first + 1
        if first // 2 in self.captured:
            return 400
        out[0] = first // 2
        return 0 if first // 2 < self.ready else 600

    def check(self, call, code):
        assert code == 0


def test_events_are_read_when_they_are_ready_and_used_again(monkeypatch):
    gpu = Events()
    monkeypatch.setattr(blocks, "ROWS", 4)
    monkeypatch.setattr(blocks, "SPARE", {})
    monkeypatch.setattr(blocks.cuda, "driver", lambda: gpu)
    found = blocks.Blocks()

    def fill(tag):  # as native code does
        block = found.current("cuda", 0)
        i = block.used
        block._timing[block._count] = i + 1
        block._rows[8 * i : 8 * i + 6] = [tag, 2, 1, 1, 100 + tag, 200 + tag]

    for tag in range(5):
        fill(tag)
    assert gpu.made == 16  # the first block was not ready
    gpu.captured, gpu.ready = {3}, 8
    for tag in range(5, 9):
        fill(tag)
    assert (gpu.made, gpu.waited) == (16, [])  # the events of the first block serve again
    rows = list(found.rows())
    assert [r.tag for r in rows] == [0, 1, 2, 4, 5, 6, 7, 8]
    times = [round(1e3 * (r.seconds or 0.0)) for r in rows]
    assert times == [0, 1, 2, 4, 5, 6, 7, 0]  # the last one has the first one's events
    assert gpu.waited == []
    fill(9)
    assert gpu.made == 16


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


@pytest.mark.usefixtures("without_triton")
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


@pytest.mark.parametrize("data", ["tree", "trace"])
def test_proton_looks_into_kernels(tmp_path: Path, data: str):
    script = tmp_path / "prog.py"
    script.write_text(
        "import numpy as np, triton, triton.language as tl\n"
        "import triton.profiler as proton\n"
        "import triton.profiler.language as pl\n"
        "pl.enable_semantic('triton')\n"
        "@triton.jit\n"
        "def sums(x, y, BLOCK: tl.constexpr):\n"
        "    pl.enter_scope('all')\n"
        "    for i in range(3):\n"
        "        with pl.scope('row'):\n"
        "            total = tl.sum(tl.load(x + i * BLOCK + tl.arange(0, BLOCK)))\n"
        "        tl.store(y + i, total)\n"
        "    pl.exit_scope('all')\n"
        "@triton.jit\n"
        "def copy(x, y):\n"
        "    tl.store(y, tl.load(x))\n"
        "x, y = np.ones((3, 16), np.float32), np.zeros(3, np.float32)\n"
        f"session = proton.start('inside', data='{data}', backend='instrumentation', mode='default')\n"
        "sums[(1,)](x, y, 16)\nassert (y == 16).all()\ncopy[(2,)](x, y)\n"
        "proton.deactivate(session)\nsums[(5,)](x, y, 16)\nproton.finalize()\n"
    )  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "tessera", "run", script.name],
        cwd=tmp_path, check=True, env=_environment(),
    )  # fmt: skip
    if data == "tree":
        root, about = json.loads((tmp_path / "inside.hatchet").read_text())
        found = {k["frame"]["name"]: k["children"][0] for k in root["children"]}
        assert {k: x["frame"]["name"] for k, x in found.items()} == {
            "sums": "program",
            "copy": "program",
        }
        counts = dict(_counts(next(k for k in root["children"] if k["frame"]["name"] == "sums")))
        assert counts == {
            "sums program all row reduce (loop in line 8, line 10)": 3,
            "sums program all store (loop in line 8, line 11)": 3,
            "sums program setup": 1,
        }
        assert about
        return
    events = json.loads((tmp_path / "inside.chrome_trace").read_text())["traceEvents"]
    names = [e["name"] for e in events if e.get("cat") == "program"]
    assert names == ["setup", *["reduce", "store"] * 3, *["setup", "store"] * 2]
    assert len({e["pid"] for e in events}) == 2  # a process for each kernel
    scopes = [e["args"].get("scopes") for e in events if e.get("cat") == "program"]
    assert scopes == [None, *["all/row", "all"] * 3, *[None, None] * 2]


def _counts(node, before: str = ""):
    """The records of a node of a tree and of those in it, by path."""
    name = f"{before} {node['frame']['name']}".strip()
    if not node["children"]:
        assert node["metrics"]["time (ns)"] > 0
        yield name, node["metrics"]["count"]
    for child in node["children"]:
        yield from _counts(child, name)


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.mark.parametrize("first", [True, False], ids=["from the first launch on", "later"])
def test_torch_sees_kernels_by_name_while_it_looks(first: bool):
    torch = pytest.importorskip("torch")

    @tessera.jit
    def shown(x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, 2.0 * tl.load(x + at, at < n), at < n)

    if not first:
        for _ in range(2):  # the second one by native code
            run(shown)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(3):
            run(shown)
    assert [e.name for e in seen.events()].count("shown") == 3
    run(shown)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen,
        tessera.profile() as own,
    ):
        for _ in range(2):
            run(shown)
    assert [e.name for e in seen.events()].count("shown") == len(own.launches) == 2
