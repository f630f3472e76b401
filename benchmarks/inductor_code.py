"""TorchInductor that writes code for an H200 on a machine that has none, and keeps it."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock


@contextmanager
def writing_for_h200(
    call: Callable[[Any, str], Callable[[list[Any]], Any]], **settings: Any
) -> Generator[None]:
    """While this lasts, Inductor takes its GPU for an H200, and `call(graph, code)` is what a graph runs instead of the
    code that Inductor wrote for it. `settings`: of `torch._inductor.config`, besides no cache and no processes."""
    import torch._inductor.config as config
    import torch.utils._triton as triton
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties

    device = DeviceProperties(
        "cuda", 0, 132, 90, major=9, regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32,
    )  # fmt: skip

    def written(graph: Any) -> Any:
        code = graph.codegen()[0]
        run = call(graph, getattr(code, "value", code))
        return SimpleNamespace(call=run, __file__="", runners=None)

    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1, **settings))
        for place, name, function in (
            (triton, "triton_hash_with_backend", lambda: ""),
            (DeviceProperties, "create", lambda place: device),
            (GraphLowering, "_compile_to_module", written),
        ):
            stack.enter_context(mock.patch.object(place, name, function))
        yield
