"""The models of graph_models.py: twenty of benchmarks/inductor, and the families of tests/graph, by name.

They differ in what they need: those of benchmarks/inductor want torchvision and transformers. `made` gives a `Case`,
which runs a model as it is or compiled, forward or with gradients.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIBRARY = (  # what takes longest to compile first
    "mobilenet", "densenet", "convnext", "squeezenet", "resnet", "mamba", "whisper", "t5", "vit", "gemma2", "qwen3",
    "bert", "albert", "llama", "olmo2", "gpt2", "opt", "bloom", "gpt-neox", "mlp",
)  # fmt: skip
FAMILIES = (
    "lstm", "gru", "rnn", "selective state space", "encoder-decoder", "language model", "diffusion u-net",
    "detection head", "speech", "vision transformer", "residual cnn", "graph attention", "mixture of experts",
    "recommender", "contrastive", "variational autoencoder", "mixer", "flow", "low-rank adapter",
)  # fmt: skip
SMALL_BATCH, SMALL_TOKENS = 2, 64  # of the library's models on a CPU


@dataclass
class Case:
    """A module and what it is called with. `loss` makes a scalar of what it returns."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], Any]
    training: bool

    def step(self, run: Any) -> Callable[[], list[Any]]:
        """One step by `run`, the module or a compiled one: forward, or forward and backward. It gives the tensors that
        count: the results, or the loss and the gradients. These are let go before the next step."""
        parameters = list(self.module.parameters())

        def inference() -> list[Any]:
            import torch

            with torch.no_grad():
                return floats(run(*self.args, **self.kwargs))

        def training() -> list[Any]:
            loss = self.loss(run(*self.args, **self.kwargs))
            loss.backward()
            found = [loss.detach(), *(p.grad for p in parameters if p.grad is not None)]
            for p in parameters:
                p.grad = None
            return found

        return training if self.training else inference


def floats(out: Any) -> list[Any]:
    """The tensors of floating point numbers in what a module returns."""
    import torch
    from torch.utils._pytree import tree_flatten

    found = tree_flatten(dict(out) if hasattr(out, "keys") else out)[0]
    return [x for x in found if isinstance(x, torch.Tensor) and x.is_floating_point()]


def made(name: str, mode: str, dtype: Any, device: str) -> Case:
    """A model with the same random weights and inputs each time, in `mode` "training" or "inference"."""
    import torch
    from torch.utils._pytree import tree_map

    torch.manual_seed(0)
    case = _of_library(name, device) if name in LIBRARY else _of_family(name)

    def placed(x: Any) -> Any:
        return x.to(device, dtype) if x.is_floating_point() else x.to(device)

    case.training = mode == "training"
    case.module = case.module.to(device, dtype).train(case.training)
    case.args, case.kwargs = tree_map(placed, case.args), tree_map(placed, case.kwargs)
    return case


def _of_library(name: str, device: str) -> Case:
    import models

    module, inputs = models.MODELS[name]()
    if hasattr(module, "config"):
        module.config.use_cache = False
    if device == "cpu":
        inputs = {k: _smaller(x) for k, x in inputs.items()}
    return Case(module, (), inputs, lambda out: out.loss if hasattr(out, "loss") else out, True)


def _smaller(x: Any) -> Any:
    """Fewer samples, and of integers fewer tokens, too."""
    x = x[:SMALL_BATCH]
    return x if x.dim() != 2 or x.is_floating_point() else x[:, :SMALL_TOKENS].contiguous()


def _of_family(name: str) -> Case:
    from tests.graph.model_families import FAMILIES as known
    from tests.graph.model_sweep import loss_of

    make, inputs = known[name]
    return Case(make(), inputs(), {}, loss_of, True)
