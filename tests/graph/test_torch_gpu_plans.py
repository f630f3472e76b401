"""Training steps planned as for a GPU launch no more kernels than they did (benchmarks/graph_kernels.py)."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tessera.torch  # noqa: E402, F401  # registers the backend
from tessera.graph.torch.records import recording  # noqa: E402
from tests.graph.gpu_plans import launched  # noqa: E402
from tests.graph.model_families import FAMILIES  # noqa: E402
from tests.graph.model_sweep import loss_of  # noqa: E402

# Kernels and externs; Inductor schedules 23, 23, 15 and 8 of both.
MOST = {
    ("graph attention", "float32"): 20,
    ("graph attention", "bfloat16"): 19,
    ("flow", "float32"): 12,
    ("low-rank adapter", "bfloat16"): 8,
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


def test_scores_are_stored_as_they_are_rounded():
    """A product of halves with a bias, and a softmax in fp32 of it: the product's kernel stores halves. torch takes
    `baddbmm` apart into a product of operands in fp32, which we do not let it."""

    def scores(bias, q, k, seen):
        found = torch.baddbmm(bias, q, k, alpha=0.125).float()
        return torch.softmax(found.masked_fill(seen, float("-inf")), -1).bfloat16()

    q, k = (torch.randn(s, dtype=torch.bfloat16) for s in ((64, 256, 64), (64, 64, 256)))
    bias, seen = torch.randn(64, 1, 256, dtype=torch.bfloat16), torch.rand(256, 256) < 0.5
    with recording() as records:
        found = launched(lambda: torch.compile(scores, backend="tessera")(bias, q, k, seen))
    assert [name.split("_")[1] for name in found.own] == ["matmul", "reduce"] and not found.externs
    first = records[0].run.plan.steps[0]
    assert [v.type.elem.short for v in first.writes] == ["bf16"]
