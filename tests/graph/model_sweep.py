"""Small models of many families under backend="tessera": a forward pass and two training steps, in fp32 and bf16.

    python -m tests.graph.model_sweep [--only NAME] [--dtypes float32,bfloat16] [--optimizer AdamW] [--device cuda]

Losses, gradients and trained weights are compared with those of fp64. They are right if their error, as a share of the
norm, is at most three times that of eager in the same type, or of the type's own resolution. The optimizer's step is
compiled, too. `breaks`: whether Dynamo breaks graphs more often than for backend="aot_eager".
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_map

from tests.graph.model_families import FAMILIES
from tests.graph.torch_kit import copied, externs, recording

RESOLUTION = {torch.float32: 3e-5, torch.bfloat16: 3e-2, torch.float64: 1e-9}


def loss_of(out: Any) -> Any:
    if not out.dim():
        return out
    weights = torch.linspace(-1, 1, out.numel(), device=out.device)
    return (out * weights.view(out.shape).to(out.dtype)).sum()


def trained(
    name: str, dtype: torch.dtype, backend: str | None, optimizer: str = "SGD"
) -> list[Any]:
    """The loss and the gradients of a first step, the weights and buffers behind the second."""
    torch.manual_seed(3)
    make, inputs = FAMILIES[name]
    model, given = make(), inputs()
    model.to(dtype)
    given = tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, given)
    weights = [p for p in model.parameters() if p.requires_grad]
    stepper: Any = getattr(torch.optim, optimizer)(weights, lr=0.01)
    torch._dynamo.reset()
    call: Any = torch.compile(model, backend=backend) if backend else model
    step: Any = torch.compile(stepper.step, backend=backend) if backend else stepper.step
    with torch.no_grad():
        found = [call.eval()(*copied(given)).detach()] if name != "residual cnn" else []
    model.train()
    for n in range(2):
        stepper.zero_grad()
        loss = loss_of(call(*copied(given)))
        loss.backward()
        if n == 0:
            found += [loss.detach(), *(p.grad.clone() for p in weights if p.grad is not None)]
        step()
    return [
        *found,
        *(p.detach() for p in weights),
        *(b for b in model.buffers() if b.is_floating_point()),
    ]


def error(found: Any, exact: Any) -> float:
    scale = exact.double().norm().item() or 1.0
    return (found.double() - exact.double()).norm().item() / scale


def judge(
    name: str, dtype: torch.dtype, optimizer: str = "SGD"
) -> tuple[float, float, set[str], int]:
    """(largest error, largest share of the bound, externs, graph breaks more than aot_eager's)."""
    counters.clear()
    trained(name, dtype, "aot_eager", optimizer)
    usual = sum(counters["graph_break"].values())
    exact, eager = (
        trained(name, torch.float64, None, optimizer),
        trained(name, dtype, None, optimizer),
    )
    counters.clear()
    with recording() as graphs:
        found = trained(name, dtype, "tessera", optimizer)
    assert len(found) == len(exact)
    worst, share = 0.0, 0.0
    for mine, theirs, true in zip(found, eager, exact, strict=True):
        bound = max(3 * error(theirs, true), RESOLUTION[dtype])
        worst, share = max(worst, error(mine, true)), max(share, error(mine, true) / bound)
    return worst, share, externs(graphs), sum(counters["graph_break"].values()) - usual


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--optimizer", default="SGD")
    options = parser.parse_args()
    torch.set_default_device(options.device)
    wrong = 0
    for name in FAMILIES:
        for dtype in (getattr(torch, d) for d in options.dtypes.split(",")):
            if options.only not in (None, name):
                continue
            begin = time.perf_counter()
            try:
                worst, share, others, breaks = judge(name, dtype, options.optimizer)
                good = share <= 1 and breaks <= 0
                text = f"error {worst:.1e}, {share:.2f} of the bound, breaks {breaks:+d}"
                text += f"; externs: {', '.join(sorted(others))}"
            except Exception as problem:
                good, text = (
                    False,
                    f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}",
                )
            wrong += not good
            seconds = time.perf_counter() - begin
            print(
                f"{'right' if good else 'WRONG'} {name}, {str(dtype)[6:]}, {seconds:.0f} s: {text}",
                flush=True,
            )
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
