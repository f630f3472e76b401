"""Tables of docs/torch-compile.md: sizes that change from call to call, and inputs of every layout, beside eager.

python -m tests.graph.shape_tables        prints them; tests/graph/test_torch_shapes.py compares the page, row by row
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import tessera.torch  # noqa: F401  registers the backend
from tests.graph.model_families import (
    Adapted,
    Contrastive,
    EncoderDecoder,
    Flow,
    Language,
    Routed,
    ids,
)
from tests.graph.torch_kit import copied, difference, gradients

R = torch.randn
SIZES = (4, 7, 12, 33, 5)


class Cells(torch.nn.Module):
    """A recurrence step by step: Dynamo leaves the modules that take all steps at once to eager."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = torch.nn.LSTMCell(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 8)
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
        return self.head(h).log_softmax(-1)


# Models, and their inputs for a size.
RESIZED: dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]]]] = {
    "rows of a perceptron": (
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)),
        lambda n: (R(n, 6),),
    ),
    "words of a language model": (Language, lambda n: (ids(2, n, most=40), ids(2, n, most=40))),
    "encoder-decoder": (EncoderDecoder, lambda n: (R(2, n, 16), R(2, 5, 16))),
    "tokens of experts": (Routed, lambda n: (R(n, 16),)),
    "pictures": (
        lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.GroupNorm(2, 4), torch.nn.SiLU()),
        lambda n: (R(2, 3, 2 * n, 8),),
    ),
    "pairs": (Contrastive, lambda n: (R(n, 10), R(n, 6))),
    "adapter": (Adapted, lambda n: (R(2, n, 16),)),
    "flow": (Flow, lambda n: (R(n, 8),)),
    "batch of a recurrence": (Cells, lambda n: (R(n, 4, 6),)),
    "embedding": (lambda: torch.nn.Embedding(20, 6), lambda n: (ids(n, 3),)),
}  # fmt: skip


def resized(name: str) -> tuple[int, int]:
    """For how many of `SIZES` a model gives what eager gives, and how many compilations that took."""
    torch.manual_seed(2)
    make, given = RESIZED[name]
    model = make().eval()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("tessera")
    compiled = torch.compile(model, backend=counter)
    equal = 0
    # If opt_einsum is there, torch orders products of three tensors by their sizes, which Dynamo then takes as fixed.
    with torch.no_grad(), torch.backends.opt_einsum.flags(enabled=False):
        for n in SIZES:
            inputs = given(n)
            equal += difference(compiled(*inputs), model(*inputs), scale=3) is None
    return equal, counter.frame_count


# --- layouts --------------------------------------------------------------------------------------------------------
BASE: dict[str, Callable[[], Any]] = {
    "row-major": lambda: R(6, 8),
    "transposed": lambda: R(8, 6).t(),
    "permuted": lambda: R(8, 2, 6).permute(2, 0, 1)[..., 0],
    "every second": lambda: R(12, 16)[::2, ::2],
    "expanded": lambda: R(6, 1).expand(6, 8),
    "overlapping windows": lambda: R(40).as_strided((6, 8), (3, 1)),
    "diagonal": lambda: R(6, 8, 8).diagonal(dim1=1, dim2=2),
    "behind an offset": lambda: R(90)[11:59].view(6, 8),
    "flipped": lambda: R(6, 8).flip(0),
    "one row": lambda: R(1, 8),
    "one column": lambda: R(6, 1),
    "no rows": lambda: R(0, 8),
    "no columns": lambda: R(6, 0),
    "nothing at all": lambda: R(0, 0),
}


def written(x: Any) -> Any:
    y = x.clone()
    y[:, ::2].mul_(2)
    return y


# What is done with a matrix.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: x.sin() * 2,
    "rows summed": lambda x: x.sum(-1),
    "columns summed": lambda x: x.sum(0),
    "all summed": lambda x: x.exp().sum(),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "transposed copy": lambda x: x.t().contiguous(),
    "reshaped": lambda x: x.reshape(-1),
    "padded": lambda x: F.pad(x, (1, 2)),
    "concatenated": lambda x: torch.cat([x, x.cos()], 0),
    "product": lambda x: x @ x.t(),
    "scan": lambda x: x.cumsum(1),
    "sorted": lambda x: x.sort(dim=-1, stable=True)[
        0
    ],  # else equal ones may share a gradient otherwise
    "gathered": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1, device=x.device)],
    "scattered": lambda x: x.new_zeros(3, x.shape[1]).index_add(
        0, torch.arange(x.shape[0], device=x.device) % 3, x
    ),
    "rolled": lambda x: x.roll(1, 0) + x.flip(1),
    "written to": written,
    "in bf16": lambda x: x.detach().bfloat16() * 3,  # its gradient would round that of all
}
SCALARS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: x.sin() * 2,
    "summed": lambda x: x.sum() + x.mean(),
    "greatest": lambda x: x.max() + x.argmax(),
    "softmax": lambda x: x.softmax(0),
    "scan": lambda x: x.cumsum(0),
    "sorted": lambda x: x.sort()[0],
    "reshaped": lambda x: x.reshape(1, 1) + x.reshape(-1),
    "expanded": lambda x: x.expand(3, 2) * 2,
    "in bf16": lambda x: x.detach().bfloat16() * 3,  # its gradient would round that of all
}


def laid(make: Callable[[], Any], programs: dict[str, Callable[[Any], Any]], dynamic: bool) -> str:
    """How many programs, compiled as one, give what eager gives, strides and all, and whether the gradient does."""

    def every(x: Any) -> Any:
        return [f(x) for f in programs.values()]

    torch.manual_seed(2)
    torch._dynamo.reset()
    compiled = torch.compile(every, backend="tessera", dynamic=dynamic)
    given = make()
    theirs, ours = (copied((given.detach(),))[0].requires_grad_() for _ in range(2))
    (wanted, one), (found, other) = (
        gradients(f, (x,), {}) for f, x in ((every, theirs), (compiled, ours))
    )
    equal = sum(difference(a, b) is None for a, b in zip(found, wanted, strict=True))
    gradient = "equal" if difference(other, one) is None else "differs"
    return f"{equal} of {len(programs)}, gradient {gradient}"


# --- arguments that share memory ------------------------------------------------------------------------------------
def changed(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x + y, x.sum()


def both_changed(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(3)
    return x * y


SHARED: dict[str, tuple[Callable[..., Any], Callable[[Any], tuple[Any, ...]]]] = {
    "the same tensor twice": (lambda x, y: x * 2 + y, lambda b: (b, b)),
    "the same tensor twice, changed": (changed, lambda b: (b, b)),
    "a tensor and its transpose, changed": (changed, lambda b: (b, b.t())),
    "slices that overlap, one changed": (changed, lambda b: (b[:4], b[2:])),
    "slices that overlap, both changed": (both_changed, lambda b: (b[:4], b[2:])),
    "slices side by side, both changed": (both_changed, lambda b: (b[:3], b[3:])),
    "an argument returned": (lambda x, y: (x, y + 1), lambda b: (b, b)),
    "views of an argument returned": (lambda x, y: (x.t(), x[1:], y.view(-1)), lambda b: (b, b)),
    "a changed argument's view returned": (lambda x, y: (x.add_(1).t(), y), lambda b: (b, b[:2])),
}


def shared(name: str, dynamic: bool) -> str:
    """Whether results, what arguments hold afterwards, and which results are memory of arguments are as in eager."""
    function, given = SHARED[name]
    torch._dynamo.reset()  # torch compiles for one overlap, and has no guard for another
    compiled = torch.compile(function, backend="tessera", dynamic=dynamic)
    torch.manual_seed(2)
    base = R(6, 6)
    seen: list[Any] = []
    for call in (function, compiled):
        mine = base.clone()
        results = call(*given(mine))
        results = results if isinstance(results, tuple) else (results,)
        homes = [
            r.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr() for r in results
        ]
        seen.append((results, mine, homes))
    return "equal" if difference(seen[1], seen[0]) is None else "differs"


# --- rows of the page -----------------------------------------------------------------------------------------------
def resized_row(name: str) -> str:
    equal, compilations = resized(name)
    return f"| {name} | {equal} of {len(SIZES)} | {compilations} |"


def layout_row(name: str) -> str:
    found = (laid(BASE[name], PROGRAMS, dynamic) for dynamic in (False, True))
    return f"| {name} | {' | '.join(found)} |"


def scalar_row() -> str:
    found = (laid(lambda: R(()), SCALARS, dynamic) for dynamic in (False, True))
    return f"| a number, without dimensions | {' | '.join(found)} |"


def shared_row(name: str) -> str:
    return f"| {name} | {' | '.join(shared(name, dynamic) for dynamic in (False, True))} |"


def pages() -> str:
    """The tables, as text."""
    lines = [
        "| model | as eager, of sizes | compilations |",
        "|---|---|---|",
        *map(resized_row, RESIZED),
    ]
    lines += [
        "",
        "| layout of a matrix | known sizes | `dynamic=True` |",
        "|---|---|---|",
        *map(layout_row, BASE),
    ]
    lines += [scalar_row()]
    lines += ["", "| two arguments in one memory | known sizes | `dynamic=True` |", "|---|---|---|"]
    return "\n".join([*lines, *map(shared_row, SHARED)])


if __name__ == "__main__":
    print(pages())
