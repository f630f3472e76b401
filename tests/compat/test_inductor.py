"""Stock TorchInductor with tessera in Triton's place."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from subprocess import Popen
from typing import Any

import kit
import pytest
from kit import HERE, cases_in, needs_torch, python, run_cases, start

pytestmark = [needs_torch, pytest.mark.slow]
needs_models = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)
FILE, MODELS = "inductor_cases.py", "model_cases.py"
# Tests of one script of cases run in one process, where tests are spread over several.
of_the_cases = pytest.mark.xdist_group("cases")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Popen[str]]]:
    """The scripts of cases, running beside each other."""
    files = [FILE, MODELS] if importlib.util.find_spec("transformers") else [FILE]
    running = {f: start(tmp_path_factory.mktemp("cases"), str(HERE / f)) for f in files}
    yield running
    for process in running.values():
        process.kill()


@pytest.fixture(scope="module")
def found(started: dict[str, Popen[str]]) -> dict[str, dict[str, Any]]:
    return kit.reported(started[FILE])


@of_the_cases
@pytest.mark.parametrize("name", cases_in(FILE))
def test_inductor(name: str, found: dict[str, dict[str, Any]]):
    assert found[name]["error"] is None


@pytest.mark.gpu
def test_inductor_on_a_gpu(tmp_path: Any):
    for file in (FILE, "cuda_cases.py"):
        rows = run_cases(tmp_path, file, TEST_DEVICE="cuda")
        assert set(rows) == set(cases_in(file))
        assert {n: r["error"] for n, r in rows.items() if r["error"]} == {}


@pytest.fixture(scope="module")
def models(started: dict[str, Popen[str]]) -> dict[str, dict[str, Any]]:
    return kit.reported(started[MODELS])


@of_the_cases
@needs_models
@pytest.mark.parametrize("name", cases_in(MODELS))
def test_a_training_step(name: str, models: dict[str, dict[str, Any]]):
    assert models[name]["error"] is None
    assert models[name]["value"] <= 1e-5


@pytest.mark.xdist_group("workers and op_db")
@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_worker_processes_and_caches(tmp_path: Any, place: str):
    script = str(HERE / "worker_case.py")
    assert "hits 0" in python(tmp_path, script, TEST_DEVICE=place)
    assert "hits 1" in python(tmp_path, script, TEST_DEVICE=place)


@pytest.mark.xdist_group("workers and op_db")
def test_a_tenth_of_op_db(tmp_path: Any):
    command = str(HERE / "op_db.py"), "--part", "10", "--no-cpp", "--slice"
    halves = [start(tmp_path, *command, str(i), "2") for i in range(2)]
    for half in halves:
        assert "equal" in kit.finish(half, 900)
