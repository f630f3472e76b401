"""What every launchable object has: `kernel[grid](...)`, `run` and `warmup`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from tessera.runtime.tensors import MockTensor


class KernelInterface:
    """Base of jitted functions, autotuners and heuristics.

    A subclass defines `run(*args, grid, warmup, **kwargs)`. `arg_names` are the kernel's parameters in order;
    `fn` is what the object wraps: another KernelInterface, or in the end the Python function.
    """

    fn: Any

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compile for these arguments without launching; a `torch.dtype` may stand for a tensor."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    def check_fit(self, *args: Any, **kwargs: Any) -> None:
        """OutOfResources if a launch with these arguments certainly needs more than the device has. What is known
        before anything is compiled decides."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """`kernel[grid](*args, **options)`; the grid is a sequence of 1 to 3 ints, or a callable giving one."""
        return partial(self.run, grid=grid, warmup=False)


def innermost_function(fn: Any) -> Any:
    """The Python function under any number of wrappers."""
    while not inspect.isfunction(fn) and getattr(fn, "fn", None) is not None:
        fn = fn.fn
    return fn
