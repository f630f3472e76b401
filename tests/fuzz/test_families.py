"""A fixed selection of the fuzzer's kernels (`tests/fuzz/run.py` draws any number), and the fuzzer's own parts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.fuzz import case, compare, devices, families, outcome
from tests.fuzz import run as fuzz
from tests.fuzz.generators import dots
from tests.fuzz.generators.features import Pick

COUNT = {"dots": 60, "reused": 10, "rows": 100, "edges": 100}
BATCH = 10  # kernels of one test


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "first"), [(f, first) for f, n in COUNT.items() for first in range(0, n, BATCH)]
)
def test_kernels_give_what_the_interpreter_gives(
    family: str, first: int, request: pytest.FixtureRequest
) -> None:
    """On the CPU under the levels that the machine has, in turn; or on the device of the option."""
    device = request.config.getoption("--device") or "cpu"
    for seed in range(first, first + BATCH):
        built = families.built(family, families.drawn(family, seed), seed)
        names = fuzz.planned(device, seed, "one", "none")
        for name, (state, text) in outcome.check(built, names, lambda _: None):
            if state in outcome.FAULTS:
                pytest.fail(f"{name}: {state}: {text}\n{case.reproducer(built, [name], text)}")


@pytest.mark.parametrize("family", COUNT)
def test_a_kernel_is_drawn_from_its_number(family: str) -> None:
    one, other = (families.drawn(family, 7) for _ in range(2))
    assert one == other != families.drawn(family, 8)
    built = families.built(family, one, 7)
    assert built.source == families.built(family, one, 7).source
    assert case.Case.loads(built.dumps()) == built


@pytest.mark.parametrize("family", COUNT)
def test_most_kernels_have_a_meaning(family: str) -> None:
    """The interpreter refuses hardly any."""
    refused = 0
    for seed in range(1000, 1020):
        built = families.built(family, families.drawn(family, seed), seed)
        results = dict(outcome.check(built, [], lambda _: None))
        refused += "interpreter" in results
    assert refused <= 1


@pytest.mark.parametrize("seed", [700359, 2402637])
def test_running_maxima_of_fp16_keep_their_type(seed: int) -> None:
    built = families.built("dots", families.drawn("dots", seed), seed)
    assert "interpreter" not in dict(outcome.check(built, [], lambda _: None))


@pytest.mark.filterwarnings("ignore")
def test_loops_are_checked_without_being_run() -> None:
    """With schedules of the planner, and with changed ones."""
    built = families.built("loops", families.drawn("loops", 5000001), 5000001)
    names = ["check90", "check90/replanned"]
    assert not any(map(devices.is_run, names))
    found = dict(outcome.check(built, names, lambda _: None))
    assert found == dict.fromkeys(names, (outcome.SAME, ""))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", families.FAMILIES)
def test_arrays_that_kernels_write_are_outputs(family: str) -> None:
    """On GPUs a kernel is launched many times, with outputs of its own each; what else it wrote the next would read."""
    for n in range(5000100, 5000130):
        built = families.built(family, families.drawn(family, n), n)
        memory = devices.Memory(built)
        before = {name: block.copy() for name, block in memory.results().items()}
        after = devices.run(built, "interpreter")
        changed = {
            name for name, block in after.items() if block.tobytes() != before[name].tobytes()
        }
        assert changed <= {memory.root(a).name for a in built.arrays if a.output}, n


def test_a_wrong_element_and_a_write_outside_of_an_array_are_seen() -> None:
    built = families.built("rows", families.drawn("rows", 3), 3)
    want = devices.run(built, "interpreter")
    output = next(a for a in built.arrays if a.output)
    for at, word in ((case.CANARY, "differ"), (case.CANARY - 1, "outside"), (-1, "outside")):
        got = {name: block.copy() for name, block in want.items()}
        block = got[output.name]
        block[at] = 77 if block[at] != 77 else 78
        assert word in compare.difference(built, got, want)
    assert compare.difference(built, want, want) == ""


def test_a_product_of_less_precision_than_asked_for_is_seen() -> None:
    """The bound for arbitrary numbers is that of fp32: numbers cut to tf32 are beyond it."""
    plain = {
        name: next(iter(pick.values), ()) if isinstance(pick, Pick) else ()
        for name, pick in dots.TABLE.items()
    }
    built = dots.build({**plain, "type": "fp32", "data": "normal", "k": 64}, 1)
    assert 0 < built.bound < 1e-3
    want = devices.run(built, "interpreter")
    magnitudes = devices.run(built, "interpreter", twin=True)
    coarse = replace(built, source=built.source.replace('"ieee"', '"tf32"'))
    for device, case_, word in (("cpu", built, ""), ("interpreter", coarse, "differ")):
        found = compare.difference(built, devices.run(case_, device), want, magnitudes)
        assert word in found and bool(word) == bool(found)


def test_a_fault_is_found_and_made_simpler(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a back end that spoils what a row reduction gives: the worker says so, the kernel shrinks to it."""
    monkeypatch.setenv("TESSERA_FUZZ_SPOIL", "tl.sum")
    options = ["--family", "rows", "--count", "12", "--isa", "one", "--shrink", "10"]
    assert fuzz.main([*options, "--out", str(tmp_path)]) == 1
    found = sorted((tmp_path / "found").iterdir())
    assert found and "tl.sum" in found[0].read_text()
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(log) == 12
    assert "different" in capsys.readouterr().out
    monkeypatch.delenv("TESSERA_FUZZ_SPOIL")
    assert fuzz.main([*options, "--out", str(tmp_path)]) == 0  # nothing is left to do
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 12


def test_a_crash_and_a_hang_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TESSERA_FUZZ_SPOIL", "crash:3,hang:5")
    options = ["--family", "rows", "--count", "6", "--isa", "one", "--shrink", "0", "--limit", "12"]
    assert fuzz.main([*options, "--out", str(tmp_path)]) == 1
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    states = {entry["seed"]: {s for s, _ in entry["results"].values()} for entry in log}
    assert states[3] == {"crash"} and states[5] == {"hang"} and states[6] == {"same"}


def test_a_reproducer_runs(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.fuzz import reproduce

    built = families.built("dots", families.drawn("dots", 5), 5)
    path = tmp_path / "found.py"
    path.write_text(case.reproducer(built, ["cpu"], "different"))
    text = path.read_text().rsplit("main(__file__, ['cpu'], ", 1)[1]
    with pytest.raises(SystemExit) as end:
        reproduce.main(str(path), ["cpu"], eval(text[: text.rindex(")")]))
    assert end.value.code == 0 and "cpu: same" in capsys.readouterr().out


def test_arrays_lie_between_canaries() -> None:
    array = case.Array("a", "i16", 5, offset=3)
    bits = devices.bits_of(array, 1)
    assert bits.size == 5 + 3 + 2 * case.CANARY and bits.ctypes.data % 64 == 0
    assert np.all(bits[: case.CANARY].view(np.uint8) == devices.PATTERN)
