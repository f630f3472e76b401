"""Training steps planned as for a GPU launch no more kernels than they did (benchmarks/graph_kernels.py)."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tessera.torch  # noqa: E402, F401  # registers the backend
from tests.graph.gpu_plans import launched  # noqa: E402
from tests.graph.model_families import FAMILIES  # noqa: E402
from tests.graph.model_sweep import loss_of  # noqa: E402

# Kernels and externs; Inductor schedules 23, 23, 15 and 8 of both.
MOST = {
    ("graph attention", "float32"): 20,
    ("graph attention", "bfloat16"): 19,
    ("flow", "float32"): 12,
    ("low-rank adapter", "bfloat16"): 9,
}


@pytest.mark.parametrize(("name", "dtype"), MOST)
def test_kernels_of_a_training_step(name: str, dtype: str):
    make, inputs = FAMILIES[name]
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    module = make().to(kind)
    given = [x.to(kind) if x.is_floating_point() else x for x in inputs()]

    def step() -> None:
        loss_of(torch.compile(module, backend="tessera")(*given)).backward()

    found = launched(step)
    assert 0 < found.count <= MOST[name, dtype], found
