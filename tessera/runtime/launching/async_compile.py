"""Compiles in the background: inside `AsyncCompileMode` launches and warm-ups hand their compilation to an executor.

with ThreadPoolExecutor() as pool, AsyncCompileMode(pool):
    kernels = [kernel.warmup(x, BLOCK=b, grid=(1,)) for b in (64, 128, 256)]   # FutureKernels, compiled concurrently
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import ContextVar
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

# The mode that a context is in, or None.
active_mode: ContextVar[Any] = ContextVar("tessera_async_compile", default=None)


class FutureKernel:
    """A kernel that is being compiled: launches and warm-ups in an AsyncCompileMode return it.

    `result()` waits for the CompiledKernel and raises errors of its compilation. So does access to its attributes.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as pool, tessera.AsyncCompileMode(pool):
        ...     kernel = double.warmup(tessera.MockTensor(tl.float64), 5, BLOCK=8, grid=(1,))
        >>> type(kernel).__name__, kernel.name
        ('FutureKernel', 'double')
    """

    def __init__(self, finish: Callable[[Any], object], future: Future[Any]) -> None:
        self.finish = finish
        self.future = future
        self.kernel: Any = None

    def result(self, ignore_errors: bool = False) -> Any:
        """Return the compiled kernel. Raise errors of its compilation, or return None for them with `ignore_errors`."""
        if self.kernel is not None:
            return self.kernel
        try:
            output = self.future.result()
        except Exception:
            if ignore_errors:
                return None
            raise
        self.kernel = self.finish(output)
        return self.kernel

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.result(), name)


class AsyncCompileMode:
    """A context manager whose compilations run in `executor`; leaving it waits for all of them.

    Launches and warm-ups inside return FutureKernels. On leaving, the first error of a compilation is raised unless
    `ignore_errors`. Nested modes raise RuntimeError.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> x = tessera.MockTensor(tl.float32)
        >>> with ThreadPoolExecutor() as pool, tessera.AsyncCompileMode(pool):
        ...     kernels = [double.warmup(x, 5, BLOCK=b, grid=(1,)) for b in (32, 64)]
        >>> kernels[0].result()
        <CompiledKernel double for cpu:native>
    """

    def __init__(self, executor: Executor, *, ignore_errors: bool = False) -> None:
        self.executor = executor
        self.ignore_errors = ignore_errors
        self.raw_futures: list[Future[object]] = []
        self.future_kernels: dict[Hashable, FutureKernel] = {}

    def submit(
        self, key: Hashable, work: Callable[[], object], finish: Callable[[Any], object]
    ) -> FutureKernel:
        """Return the FutureKernel of `key`; `work` runs in the executor unless that key was submitted before."""
        found = self.future_kernels.get(key)
        if found is not None:
            return found
        future = self.executor.submit(work)
        future._key = key  # type: ignore[attr-defined]
        self.raw_futures.append(future)
        kernel = self.future_kernels[key] = FutureKernel(finish, future)
        return kernel

    def __enter__(self) -> Self:
        if active_mode.get() is not None:
            raise RuntimeError("Another AsyncCompileMode is already active")
        self._token = active_mode.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        active_mode.reset(self._token)
        # In order of completion, so that the executor's threads never wait for this thread.
        for future in import_module("concurrent.futures").as_completed(self.raw_futures):
            self.future_kernels[future._key].result(self.ignore_errors or error is not None)  # type: ignore[attr-defined]
