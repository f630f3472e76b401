"""TorchInductor writing kernels for an H200 on a machine that has none, from steps on fake tensors of the CPU.

Graphs are traced and differentiated on the CPU, where fake tensors cost neither memory nor time. Before Inductor lowers
a graph, its tensors become fake tensors of a GPU; what it writes is kept, and what the graph gives are fake tensors of
the CPU again.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from inductor_code import writing_for_h200
from published.stand_ins import ANSWERS


@contextmanager
def inductor_for_h200() -> Generator[tuple[Any, list[str]]]:
    """A backend for `torch.compile`, and the list to which it adds the programs that it writes."""
    import torch
    from torch._inductor import compile_fx
    from torch._subclasses import fake_tensor
    from torch.nn.attention import SDPBackend, sdpa_kernel

    codes: list[str] = []

    def kept(graph: Any, code: str) -> Callable[[list[Any]], Any]:
        codes.append(code)
        return lambda inputs: None

    answers = {
        **ANSWERS, "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None,
        "_exchange_device": 0, "_maybe_exchange_device": 0, "synchronize": None, "_lazy_init": None,
        "current_stream": SimpleNamespace(cuda_stream=0),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, _a=answer, **__: _a))
        stack.enter_context(
            writing_for_h200(kept, benchmark_kernel=True, autotune_local_cache=False)
        )
        for place, name, function in (
            (torch.accelerator, "is_available", lambda: False),  # asked for streams
            (fake_tensor, "init_gpu_context", lambda device: None),
            # Would run the graph, which a torch without CUDA cannot; each node has its tensor, see below.
            (
                compile_fx,
                "fake_tensor_prop",
                lambda gm, inputs, *_: torch._guards.detect_fake_mode(inputs),
            ),
        ):
            stack.enter_context(mock.patch.object(place, name, function))
        # The CPU's fused attention is not the GPU's.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield partial(compile_fx.compile_fx, inner_compile=_on_gpu), codes


def _on_gpu(gm: Any, inputs: Any, **options: Any) -> Any:
    """Lower `gm` as a graph of GPU tensors; call it on the CPU's."""
    import torch
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.utils._pytree import tree_map

    as_it_is = copy.deepcopy(gm)
    place = torch.device("cuda", 0)
    for node in gm.graph.nodes:
        node.args = torch.fx.node.map_aggregate(
            node.args, lambda x: place if isinstance(x, torch.device) else x
        )
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": place}
    mode = torch._guards.detect_fake_mode(inputs)
    assert mode is not None

    def moved(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        with mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=place)

    for node in gm.graph.nodes:
        for name in ("val", "example_value"):
            if name in node.meta:
                node.meta[name] = tree_map(moved, node.meta[name])
    new = [
        n.meta["val"] if isinstance(x, torch.Tensor) else x
        for n, x in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)
    ]
    gm.recompile()
    compile_fx_inner(gm, new, **options)

    def call(given: list[Any]) -> Any:
        values = list(given)
        given.clear()
        return as_it_is(*values)

    call._boxed_call = True
    return call


def programs_of(make: Callable[[], Callable[[Any], Any]]) -> list[str]:
    """What Inductor writes for a step. `make()` is called where tensors are fakes, and gives a function that runs the
    step with `compile`, which stands for `torch.compile`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch._dynamo.reset()
    with inductor_for_h200() as (backend, codes), FakeTensorMode(allow_non_fake_inputs=True):
        make()(partial(torch.compile, backend=backend))
    return codes
