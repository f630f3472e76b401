"""What numerics="eager" and "fast" round, and how far results are from eager's and from float64's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tessera.torch  # noqa: E402, F401  registers the backend
from tessera.errors import InvalidOption  # noqa: E402
from tessera.graph.report.rows import Distance, Report  # noqa: E402
from tessera.graph.torch.measure import distances as measured  # noqa: E402
from tessera.graph.torch.options import options_of  # noqa: E402

EAGER = {"numerics": "eager"}


def distances(function: Any, *inputs: Any, options: dict[str, str] | None = None) -> list[Any]:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tessera", options=options)
    return measured(function, compiled, inputs, [])


def chain(x: Any, y: Any) -> Any:
    """Roundings that add up: of bf16 after each operation."""
    for _ in range(6):
        x = x * 1.01 + y
        y = torch.relu(y - x * 0.03)
    return x, y


def pair(dtype: Any) -> tuple[Any, Any]:
    torch.manual_seed(3)
    return torch.randn(64, 33).to(dtype), torch.randn(64, 33).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_eager_numerics_are_the_same_bits(dtype: Any):
    assert all(d.eager == 0 for d in distances(chain, *pair(dtype), options=EAGER))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fast_numerics_are_nearer_to_real_numbers(dtype: Any):
    for d in distances(chain, *pair(dtype)):
        assert d.eager > 0
        assert d.exact < d.eager_exact


NARROW = {
    "bfloat16": torch.float32, "float16": torch.float32, "float8_e4m3fn": torch.float32, "float8_e5m2": torch.float32,
    "float32": torch.float64,
}  # fmt: skip


def assert_same_bits(function: Any, *inputs: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tessera")
    for found, wanted in zip(compiled(*inputs), function(*inputs), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", NARROW)
def test_conversions_of_the_program_round(name: str):
    """What a conversion loses, and fake quantisation; before and after operations."""
    narrow, wide = getattr(torch, name), NARROW[name]

    def conversions(x: Any, y: Any) -> Any:
        lost = x - x.to(narrow).to(wide)
        return (
            lost,
            (x * 0.5).to(narrow).to(wide) * 2,
            torch.relu(y).to(narrow).to(wide).sum(-1) - y[:, 0],
        )

    assert_same_bits(conversions, *(v * 1.1 for v in pair(wide)))


def test_conversions_of_autocast_round():
    def linear(x: Any, y: Any) -> Any:
        with torch.autocast(x.device.type, torch.bfloat16):
            product = torch.nn.functional.linear(x * 1.01, y)
            wide = x[:, :2].bfloat16().prod(-1)  # fp32 under autocast
            return (product, wide.bfloat16().float() - x[:, 0])

    assert_same_bits(linear, *pair(torch.float32))


def test_sums_of_a_narrower_type_are_of_elements_of_it():
    """sum(dtype=torch.bfloat16) converts each element first: 127 times 1, not 127.47."""

    def sums(x: Any) -> Any:
        return [f(-1, dtype=torch.bfloat16) for f in (x.sum, x.cumsum)]

    assert_same_bits(sums, torch.full((8, 127), 1 + 2**-8 - 2**-12))


def norm(x: Any, y: Any) -> Any:
    """A row that is rounded, reduced, and read again."""
    h = x * y
    return torch.nn.functional.layer_norm(h, h.shape[-1:])


def test_rows_between_operations():
    exact = distances(norm, *pair(torch.bfloat16), options=EAGER)
    fast = distances(norm, *pair(torch.bfloat16))
    assert exact[0].eager <= 2**-8  # where eager adds in another order
    assert fast[0].exact < exact[0].exact


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_the_greatest_element_is_found(numerics: str):
    """It is compared with what was stored, so it must be rounded as that was."""

    def greatest(x: Any, y: Any) -> Any:
        h = x * y
        return (h == h.amax(-1, keepdim=True)).sum(-1, dtype=torch.float32)

    (d,) = distances(greatest, *pair(torch.bfloat16), options={"numerics": numerics})
    assert d.eager == 0


MANY = 7 * 2879  # rows, of which no number of blocks is full
ROWS: dict[str, Any] = {
    "columns": lambda x, i: x.sum(0),
    "gathered": lambda x, i: x[i].sum(0),
    "several": lambda x, i: (x.mean(0), (x * x).sum(0), x.amax(0)),
    "variance": lambda x, i: (x.exp() + 3).var(0),
    "long rows": lambda x, i: (x.T * 1.5).sum(1),
    "bias": lambda x, i: torch.nn.functional.layer_norm(x, (8,)).exp().sum(0),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_sums_of_many_numbers_are_near_to_real_ones(name: str, dynamic: bool):
    """Eager adds in a tree. One after the other, rounding errors would add up to twenty times as much."""
    torch.manual_seed(5)
    torch._dynamo.reset()
    compiled = torch.compile(ROWS[name], backend="tessera", dynamic=dynamic)
    for n in (MANY, MANY - 1)[: 1 + dynamic]:
        x, i = torch.randn(n, 8), torch.randint(0, n, (n,))
        for d in measured(ROWS[name], compiled, (x, i), []):
            assert d.exact is not None and d.eager_exact is not None
            assert d.exact <= max(3 * d.eager_exact, 8e-7), (n, str(d))


class Gated(torch.nn.Module):
    """Gradients of inputs and of parameters; the bias has none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.unused = (
            torch.nn.Linear(33, 33, bias=False),
            torch.nn.Parameter(torch.ones(3)),
        )

    def forward(self, x: Any, more: Any) -> Any:
        return self.gate(x).sigmoid() * more["y"], x.exp().sum()


def test_each_output_and_each_gradient_has_distances_of_its_own():
    x, y = (v.requires_grad_() for v in pair(torch.float32))
    found = {d.output: d for d in distances(Gated(), x, {"y": y, "z": 3})}
    gradients = ["inputs[0]", "inputs[1]['y']", "gate.weight"]
    assert [*found] == ["output 0", "output 1", *(f"gradient of {g}" for g in gradients)]
    assert all(d.eager < 1e-5 and d.exact < 1e-5 and d.eager_exact < 1e-5 for d in found.values())


def test_a_gradient_that_is_wrong_is_told_from_right_ones():
    """As one that a fault of ours makes twice as large."""

    def twice(x: Any, y: Any) -> Any:
        return x.sin() + 2 * y.cos() - y.cos().detach()

    x, y = (v.requires_grad_() for v in pair(torch.float64))
    far = {d.output: d.eager for d in measured(lambda x, y: x.sin() + y.cos(), twice, (x, y), [])}
    assert far["output 0"] < 1e-12 and far["gradient of inputs[0]"] < 1e-12
    assert far["gradient of inputs[1]"] == pytest.approx(1)


def test_a_text_names_the_gradients_that_are_farthest():
    known = [Distance(f"gradient of w{k}", 0.0, k / 100, 0.5) for k in range(20)]
    exact = Distance("gradient of w20", 0.9, 0.0, 0.9)  # ours is float64's, eager's is far
    lines = str(Report(distances=[Distance("output 0", 0.1, 0.2, 0.3), *known, exact])).splitlines()
    assert lines[1] == "output 0: 1.0e-01 from eager, 2.0e-01 from float64 (eager 3.0e-01)"
    assert [line.split(":")[0] for line in lines[2:10]] == [
        f"gradient of w{k}" for k in range(12, 20)
    ]
    assert lines[10].startswith("13 other gradients, at most: 9.0e-01 from eager, 1.1e-01 from")


def test_an_unknown_numerics_is_refused():
    with pytest.raises(InvalidOption, match="numerics is 'exact'; it may be fast or eager"):
        options_of(None, {"numerics": "exact"})
