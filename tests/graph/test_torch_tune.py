"""Products that are timed (`mode="max-autotune"`): what is chosen, what is kept on disk, what is left out."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import tessera.torch  # noqa: F401, E402  registers the backend
from tessera.config import knobs  # noqa: E402
from tessera.dtypes import float32  # noqa: E402
from tessera.graph.calls.executable import machine_of  # noqa: E402
from tessera.graph.emit.matmul import variants  # noqa: E402
from tessera.graph.ir.ops import MatmulOp  # noqa: E402
from tessera.graph.ir.types import TensorType  # noqa: E402
from tessera.graph.torch import tune  # noqa: E402
from tessera.graph.torch.options import options_of  # noqa: E402
from tessera.graph.torch.records import recording  # noqa: E402
from tessera.runtime.autotuner import store  # noqa: E402

SHAPES = (48, 40, 56)


class Clock:
    """Gives these times in turn, the first one to eager; the last one again and again. `asked`: how often."""

    def __init__(self, *times: float) -> None:
        self.times, self.asked = times, 0

    def __call__(self, run: Any, device: str) -> float:
        run()
        self.asked += 1
        return self.times[min(self.asked, len(self.times)) - 1]


@pytest.fixture
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "folder", lambda: str(tmp_path))
    monkeypatch.setattr(tune, "_KNOWN", {})
    return tmp_path


def run(m: int, k: int, n: int, **settings: Any) -> Any:
    """The record of a product with what follows it, which is compared with eager's."""
    x, w, b = (torch.randn(*shape, device="cpu") for shape in ((m, k), (n, k), (n,)))
    f = lambda x, w, b: torch.nn.functional.linear(x, w, b).relu()
    torch._dynamo.reset()
    settings = {"mode": "max-autotune", "dynamic": False, **settings}
    compiled = torch.compile(f, backend="tessera", **settings)
    with recording() as graphs:
        found = compiled(x, w, b)
    torch.testing.assert_close(found, f(x, w, b), rtol=1e-4, atol=1e-4)
    return graphs[0]


def products(record: Any) -> list[Any]:
    (function,) = record.imported.module.functions
    return [x for x in function.walk() if isinstance(x, MatmulOp)]


@pytest.fixture
def clock(request: Any, nothing_known: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock(*request.param)
    monkeypatch.setattr(tune, "time_of", found)
    return found


@pytest.mark.parametrize("clock", [(3.0, 2.0, 1.0, 2.5)], indirect=True)
def test_the_fastest_kernel_is_taken(clock: Clock):
    record = run(*SHAPES)
    (op,) = products(record)
    chosen, op.attrs["blocks"] = op.blocks, ()
    machine = machine_of(tune.GPUTarget("cpu", "native", 1))
    second = variants(op, machine)[1]
    assert chosen == astuple(second)
    assert record.externs == [] and clock.asked == 1 + len(variants(op, machine))


@pytest.mark.parametrize("clock", [(1.0, 2.0)], indirect=True)
def test_eager_is_taken_where_it_is_fastest(clock: Clock):
    record = run(*SHAPES)
    assert products(record) == []
    assert record.externs == [("aten.addmm.default", "eager's product took 1 ms, the best kernel 2 ms")]  # fmt: skip


@pytest.mark.parametrize("clock", [(2.0, 1.0)], indirect=True)
def test_a_product_is_timed_once(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    run(*SHAPES)
    asked = clock.asked
    run(*SHAPES)
    assert clock.asked == asked
    monkeypatch.setattr(tune, "_KNOWN", {})  # another process
    run(*SHAPES)
    assert clock.asked == asked
    run(48, 40, 57)
    assert clock.asked > asked


@pytest.mark.parametrize("clock", [(2.0, 1.0)], indirect=True)
def test_nothing_is_kept_where_the_knob_says_so(clock: Clock, nothing_known: Path):
    with knobs.autotuning.scope():
        knobs.autotuning.cache = False
        run(*SHAPES)
    assert list(nothing_known.iterdir()) == []


@pytest.mark.parametrize("clock", [(2.0, 1.0)], indirect=True)
def test_kernels_that_are_wrong_or_do_not_run_are_left_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tune, "_agrees", lambda *given: False)
    record = run(*SHAPES)
    assert record.externs[0][1] == "eager's product took 2 ms, the best kernel none"
    monkeypatch.setattr(tune, "_KNOWN", {})
    monkeypatch.setattr(tune, "_kernel", lambda *given: None)
    assert products(run(48, 40, 58)) == []
    assert clock.asked == 2


@pytest.mark.parametrize("clock", [(1.0, 2.0)], indirect=True)
def test_what_is_not_timed(clock: Clock):
    assert len(products(run(*SHAPES, options={"matmul": "auto"}, mode=None))) == 1
    assert run(1, 40, 56).externs == []  # a vector: sums in a loop
    assert products(run(*SHAPES, dynamic=True)) == []
    assert clock.asked == 0


@pytest.mark.usefixtures("nothing_known")
def test_operands_are_not_cast_where_a_program_casts(monkeypatch: pytest.MonkeyPatch):
    kinds: list[Any] = []

    def time_of(run: Any, device: str) -> float:
        found = run()
        kinds.append(found.dtype if isinstance(found, torch.Tensor) else found[0].dtype)
        return 1.0

    monkeypatch.setattr(tune, "time_of", time_of)
    t = TensorType((16, 16), float32)
    with torch.autocast("cpu", torch.bfloat16):
        tune.times_of(tune.TimedProduct(t, t, float32, float32, "ieee"))
    assert set(kinds) == {torch.float32}


def test_options_go_before_modes():
    assert options_of("max-autotune", None).matmul == "timed"
    assert options_of("max-autotune-no-cudagraphs", {"matmul": "auto"}).matmul == "auto"
    assert options_of("default", None).matmul == "auto"


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_times_are_of_this_machine_and_take_no_random_numbers(dtype: Any):
    x = torch.randn(3, 40, 48, dtype=dtype).mT
    w = torch.randn(40, 24, dtype=dtype).expand(3, 40, 24)
    torch._dynamo.reset()
    compiled = torch.compile(torch.bmm, backend="tessera", options={"matmul": "timed"})
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    found = compiled(x, w)
    assert torch.equal(torch.rand(3), wanted)
    torch.testing.assert_close(found, torch.bmm(x, w))
    ((_, times),) = tune._KNOWN.items()
    assert len(times) >= 2 and all(0 < ms < 1e3 for (ms,) in times.values())


@pytest.mark.usefixtures("nothing_known")
def test_a_model_in_the_mode_that_times():
    """Forward and backward, on a GPU recorded, while somebody listens."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="tessera", mode="max-autotune", dynamic=False)
    with recording() as graphs:
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(40, 48)
            found, wanted = compiled(x), model(x)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            grads = [
                torch.autograd.grad(y.square().sum(), model.parameters()) for y in (found, wanted)
            ]
            for got, want in zip(*grads, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    assert len(graphs) == 2
    assert (40, 48) in [x.shape for x in graphs[0].inputs or ()]
    assert len(tune._KNOWN) >= 4
