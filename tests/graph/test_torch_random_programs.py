"""Random programs of views, writes through them, scatters, joins and reductions give what eager gives, and what they
return shares memory with what it shares it with in eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")


from tests.graph.random_programs import RandomProgram, copied  # noqa: E402
from tests.graph.torch_kit import detached, difference, gradients  # noqa: E402


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_STRICT", "1")


def sharing(values: Sequence[Any]) -> set[tuple[int, int]]:
    """The pairs of tensors that lie in the same memory."""
    places = [x.untyped_storage().data_ptr() if x.numel() else -k for k, x in enumerate(values, 1)]
    return {(i, j) for j, q in enumerate(places) for i, p in enumerate(places[:j]) if p == q}


def drawn(*given: int, **kinds: bool) -> RandomProgram:
    with torch.device("cpu"):
        return RandomProgram(*given, **kinds)


def check(program: RandomProgram, dynamic: bool) -> None:
    function = program.function()
    torch._dynamo.reset()
    compiled = torch.compile(
        function, backend="tessera", dynamic=dynamic, options={"numerics": "eager"}
    )
    device, pairs = torch.empty(0).device, []
    for call in (function, compiled):
        given = [copied(x, device) for x in program.args]
        try:
            out, grads = gradients(call, given, {}) if program.gradients else (call(*given), [])
        except NotImplementedError as error:
            if call is function:
                pytest.skip(f"this device has no such kernel: {error}")
            raise
        shared = sharing([*given, *out])
        pairs.append(((detached(out), grads, detached(given)), shared))
    (wanted, together), (found, ours) = pairs
    assert difference(found, wanted, strides=False) is None, program.text
    assert ours == together, program.text


@pytest.mark.parametrize("seed", range(6))
def test_forward(seed: int):
    """Infinities, NaN and the ends of integers among the numbers; sizes are symbols in every second."""
    check(drawn(seed, 14, special=True), dynamic=seed % 2 == 1)


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 6, 7])
def test_backward(seed: int):
    """Of programs that eager can take the gradients of, in spite of what they write."""
    check(drawn(seed, 10, gradients=True), dynamic=False)
