"""What a library launches, without launching it: each launch as a Kernel of breadth.py, with all configurations.

The library runs on fake tensors; jitted functions, tuners and the library's own caches of kernels are replaced by one
that notes. A tuner's launch is noted with the configurations that its own pruning leaves.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # before a library's absent packages have stand-ins, which sympy would take for real
from published.stand_ins import ANSWERS, Lenient

from generated.extract import NotByItself, expression, text_of
from generated.kernel import Config, Kernel
from tessera.runtime.autotuner import Autotuner
from tessera.runtime.jit import JITFunction
from tessera.runtime.launching.interface import KernelInterface

MOST_CONFIGS = 3
WAITING = ("sweep",)  # kernels of decoupled look-back


class Notes:
    """The launches of one run. `errors`: of those that could not be noted."""

    def __init__(self, below: int | None) -> None:
        self.kernels: dict[str, Kernel] = {}
        self.errors: list[str] = []
        self.below = below
        self.trying = False

    def launch(self, fn: Any, args: Any, grid: Any, kwargs: Any) -> tuple[Any, Config]:
        kwargs = {k: v for k, v in kwargs.items() if k != "warmup"}
        values, pairs, options = fn.create_binder()(*args, **kwargs)
        source = fn._source(pairs)
        named = dict(zip(fn.arg_names, values, strict=True))
        extents: Any = grid(named) if callable(grid) else grid
        options = dict(options)
        warps, stages = options.pop("num_warps", 4), options.pop("num_stages", 3)
        options = {
            k: v for k, v in options.items() if v is not None and not (k == "num_ctas" and v == 1)
        }
        constants = {
            name: _constant(v)
            for name, v in zip(fn.arg_names, values)
            if source.signature[name] == "constexpr"
        }
        config = Config(
            constants, warps, stages, [int(n) for n in extents] + [1] * (3 - len(extents))
        )
        return (fn, source, named, options), config

    def keep(self, launch: Any, configs: list[Config]) -> None:
        fn, source, named, options = launch
        if fn.__name__ in WAITING:
            raise NotByItself(
                f"{fn.__name__} waits for other programs, by flags that random arrays do not hold"
            )
        for config in configs:
            if (reason := config.unlaunchable()) is not None:
                raise NotByItself(reason)
        for kind in source.signature.values():
            if not isinstance(kind, str) or "tensordesc" in kind:
                raise NotByItself(f"an argument is {kind}")
        attributes = [[list(place), given] for place, given in source.attrs.items()]
        kernel = Kernel(
            fn.__name__, text_of(fn), dict(source.signature), {}, attributes, options, configs,
            [_argument(v) for v in named.values()], below=self.below, whole=True,
        )  # fmt: skip
        self.kernels.setdefault(kernel.key, kernel)

    def note(self, fn: Any, launches: list[tuple[Any, Config]]) -> None:
        try:
            self.keep(launches[0][0], [c for _, c in launches])
        except Exception as error:
            self.errors.append(f"{fn.__name__}: {type(error).__name__}: {error}"[:200])


def _constant(value: Any) -> Any:
    """As JSON: what is no number or text is an expression, {"expression": "tl.float32"}."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else {"expression": f"float({str(value)!r})"}
    if isinstance(value, torch.dtype):
        raise NotByItself(f"a constant is {value}")
    text = expression(value)
    if text is None:
        raise NotByItself(f"a constant is {type(value).__name__}")
    return {"expression": text}


def _argument(value: Any) -> Any:
    if hasattr(value, "data_ptr"):  # FlagGems has views of its own
        return [str(value.dtype).removeprefix("torch."), [*value.size()], [*value.stride()]]
    return value if isinstance(value, (bool, int, float)) else None


class OnGPU(Lenient):
    """Modules for which a tensor of the CPU is one of a GPU: so many a library chooses its grids and functions."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        text = importlib.util.decode_source(self.get_data(path))
        text = re.sub(r"""\.device\.type == (["'])cuda\1""", ".device.type != 'meta'", text)
        return self.source_to_code(re.sub(r"\.is_cuda\b", ".is_cpu", text), path)


@contextmanager
def noting(below: int | None = None) -> Iterator[Notes]:
    """Within it, nothing is launched; the launches are noted."""
    notes = Notes(below)

    def jitted(fn: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        launch = notes.launch(fn, args, grid, kwargs)
        if notes.trying:
            return launch
        notes.note(fn, [launch])
        return SimpleNamespace()

    def tuned(tuner: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        named = tuner.nargs = dict(zip(tuner.arg_names, args))
        configs = tuner.prune_configs(kwargs)[:MOST_CONFIGS]
        notes.trying = True
        try:
            launches = []
            for config in configs:
                if config.pre_hook is not None:
                    config.pre_hook({**named, **kwargs, **config.all_kwargs()})
                launches.append(
                    tuner.fn.run(
                        *args, grid=grid, warmup=False, **{**kwargs, **config.all_kwargs()}
                    )
                )
        finally:
            notes.trying = False
        tuner.best_config = configs[0]
        notes.note(tuner.base_fn, launches)
        return SimpleNamespace()

    def through(entry: Any, *args: Any, **kwargs: Any) -> Any:
        entry.fn.run(*args, **kwargs)
        return SimpleNamespace(), {}

    def subscript(kernel: Any, grid: Any) -> Any:
        return lambda *args, **kwargs: kernel.run(*args, grid=grid, warmup=False, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(patch.object(JITFunction, "__getitem__", subscript))
        for kind in _kinds(KernelInterface):
            if "run" in vars(kind):
                replaced = None
                if issubclass(kind, JITFunction):
                    replaced = jitted
                elif issubclass(kind, Autotuner):
                    replaced = tuned
                elif not kind.__module__.startswith("tessera"):
                    replaced = through
                if replaced is not None:
                    stack.enter_context(patch.object(kind, "run", replaced))
        for name, answer in ANSWERS.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, _a=answer, **__: _a))
        stack.enter_context(patch.object(torch.cuda, "device", lambda *_: nullcontext()))
        # What depends on values: some number, and gradients that are not all 1.
        stack.enter_context(patch.object(torch.Tensor, "item", lambda x: 1024))
        stack.enter_context(patch.object(torch.Tensor, "__bool__", lambda x: True))
        stack.enter_context(patch.object(torch, "equal", lambda a, b: False))
        yield notes


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
