"""Kernels compiled by Inductor's worker processes; started twice, the second time out of its caches."""

from __future__ import annotations

import os
import time

# isort: off
import tessera.compat  # noqa: F401  before torch._dynamo, which imports triton
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile
# isort: on

inductor_config.cpu_backend = "triton"
inductor_config.triton.autotune_pointwise = False
inductor_config.compile_threads = 2
inductor_config.worker_start_method = "subprocess"


def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.softmax(x.sin() @ x.T, -1).sum(0).tanh(), x.var(-1)


if __name__ == "__main__":
    AsyncCompile.wakeup()
    deadline = time.monotonic() + 120
    while not AsyncCompile.use_process_pool():
        assert time.monotonic() < deadline, "the workers did not start"
        time.sleep(0.1)
    torch.set_default_device(os.environ.get("TEST_DEVICE", "cpu"))
    torch.manual_seed(0)
    x = torch.randn(64, 100)
    torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-4, atol=1e-5)
    print("hits", counters["inductor"]["fxgraph_cache_hit"])
