"""Profiles programs (rank 8): the time of each launch, by scope and kernel (docs/profiling.md)."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tessera.compiler.kernel import CompiledKernel, LazyDict
from tessera.config import knobs
from tessera.config.types import HookChain
from tessera.errors import TesseraError
from tessera.profiler import output
from tessera.profiler.blocks import Block, Blocks
from tessera.profiler.cupti import Activity, Unusable, seconds_of
from tessera.profiler.records import Launch, Node, Scope, tree
from tessera.runtime.cuda import driver_api as cuda

__all__ = ["Launch", "Scope", "profile"]

Raw = tuple[CompiledKernel, tuple[int, ...], int, int, Any, tuple[str, ...], LazyDict]
# Seconds are None where CUPTI has them.
Finished = tuple[CompiledKernel, tuple[int, ...], int, float | None, tuple[str, ...], LazyDict]


class profile:
    """Records the launches of a program: `with tessera.profile() as p: …; print(p)`.

    On a GPU launches are timed by CUPTI, or by a pair of CUDA events each where CUPTI is missing, another tool uses it
    (torch's profiler, Nsight), or `cupti` is false; `p.gpu_timer` says which, and why. On a CPU the host's clock does.
    `p.scope("name")`, or `tessera.profile.scope("name")` anywhere in the program, names a part of it; scopes nest, and
    take metrics as keyword arguments. What a kernel declares by `jit(launch_metadata=…)` (`bytes`, `flops`, `flops16`,
    `name`, …) gives rates. `counts=True` takes bytes and operations from `explain` for kernels that declare none, for
    the first launch of each kernel and grid.

    `print(p)` shows the tree; `p.launches` and `p.scopes` hold the records; `p.save("trace.json")` writes a trace for
    ui.perfetto.dev or chrome://tracing, `p.save("name.hatchet")` what proton's viewer reads. Without a profile launches
    cost nothing more. It raises TesseraError if it is entered twice.

    Example:
        >>> with tessera.profile() as p, p.scope("twice", items=2):
        ...     for _ in range(2):
        ...         _ = double[(1,)](np.ones(8, np.float32), 8, BLOCK=8)
        >>> [(x.kernel, x.scopes, x.seconds > 0) for x in p.launches]
        [('double', ('twice',), True), ('double', ('twice',), True)]
    """

    _open: tuple[str, ...] = ()  # names of the scopes that the program is in
    _running: tuple[profile, ...] = ()

    def __init__(self, counts: bool = False, cupti: bool = True) -> None:
        self.counts, self.cupti = counts, cupti
        self.gpu_timer = ""  # nothing was launched on a GPU
        self._activity: Activity | None = None
        self._devices = set[int]()  # that CUPTI sees kernels of
        self.launches: list[Launch] = []
        self.scopes: list[Scope] = []
        self._raw: list[Raw] = []
        self._begun: dict[int, tuple[int, Any]] = {}  # by metadata: several threads may launch
        self._hooks: tuple[Before, Callable[[LazyDict], None]] | None = None
        self._origin = time.perf_counter_ns()
        self._blocks, self._kernels = Blocks(), list[CompiledKernel]()  # of native launches
        self._marks: list[tuple[int, tuple[str, ...]]] = []  # when which scopes began to be open
        self._spare: list[int] = []  # CUDA events
        self._counted: dict[Any, dict[str, float]] = {}

    # --- what is recorded -----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        if self in profile._running:
            raise TesseraError(
                "this profile is running already", help="make another one: tessera.profile()"
            )
        profile._running = (*profile._running, self)
        self._marks.append((time.perf_counter_ns(), profile._open))
        runtime = knobs.runtime
        # Chains are assigned, not changed in place: native launches notice.
        before, after = runtime.launch_enter_hook.calls, runtime.launch_exit_hook.calls
        self._hooks = Before(self), self._leave
        runtime.launch_enter_hook = HookChain(calls=(*before, self._hooks[0]))
        runtime.launch_exit_hook = HookChain(reverse=True, calls=(*after, self._hooks[1]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        profile._running = tuple(p for p in profile._running if p is not self)
        runtime = knobs.runtime
        before, after = runtime.launch_enter_hook.calls, runtime.launch_exit_hook.calls
        own = self._hooks or ()
        runtime.launch_enter_hook = HookChain(calls=tuple(x for x in before if x not in own))
        runtime.launch_exit_hook = HookChain(
            reverse=True, calls=tuple(x for x in after if x not in own)
        )
        self.finish()

    def timing(self, kernel: CompiledKernel, device: int) -> tuple[Block, int] | None:
        """Return where native launches of a kernel write their times, and its tag in rows; None if they need the
        launch's metadata."""
        declares = getattr(getattr(kernel.src, "fn", None), "launch_metadata", None)
        backend = kernel.target.backend
        if declares is not None or self.counts or backend not in ("cpu", "cuda"):
            return None
        self._kernels.append(kernel)
        events = backend == "cuda" and not self._by_cupti()
        if backend == "cuda":
            self._devices.add(device)
        return self._blocks.current(backend, device, events), len(self._kernels) - 1

    def _by_cupti(self) -> bool:
        """Whether CUPTI times kernels; asked for it at the first launch on a GPU, so that it records all of them."""
        if not self.gpu_timer:
            try:
                if not self.cupti:
                    raise Unusable("as asked for")
                self._activity, self.gpu_timer = Activity(), "CUPTI"
            except Unusable as reason:
                self.gpu_timer = f"CUDA events ({reason})"
        return self._activity is not None

    def enter(self, metadata: LazyDict) -> None:
        launch = metadata.launch
        event = None
        if launch is not None and launch[0].target.backend == "cuda":
            stream = metadata.data["stream"]
            if not self._by_cupti():
                event = self._record(stream)
            elif cuda.driver().is_capturing(stream):
                return
            else:
                event = BY_CUPTI
                self._devices.add(cuda.driver().current_device())
        self._begun[id(metadata)] = time.perf_counter_ns(), event

    def _leave(self, metadata: LazyDict) -> None:
        end = time.perf_counter_ns()
        begun = self._begun.pop(id(metadata), None)
        if begun is None:
            return  # another thread's launch, which began before the profile, or one that a graph captures
        start, event = begun
        if metadata.launch is None:
            return
        kernel, grid, _ = metadata.launch
        pair = event
        if event is not None and event is not BY_CUPTI:
            pair = event, self._record(metadata.data["stream"])
        kept = metadata
        if not self.counts and not metadata.extras:
            kept = EMPTY  # the arguments need not live on
        self._raw.append((kernel, grid, start, end, pair, profile._open, kept))

    def _event(self) -> int:
        return self._spare.pop() if self._spare else cuda.driver().event_create()

    def _record(self, stream: int) -> int:
        event = self._event()
        cuda.driver().event_record(event, stream)
        return event

    # --- scopes ---------------------------------------------------------------------------------------------
    @staticmethod
    @contextmanager
    def scope(name: str, **metrics: float) -> Generator[None]:
        """Name a part of the program. `metrics`: numbers that are added to the scope's."""
        before = profile._open
        start = profile._enter_scope((*before, name))
        try:
            yield
        finally:
            end = profile._enter_scope(before)
            for p in profile._running:
                p.note(
                    Scope(
                        name,
                        (start - p._origin) * 1e-9,
                        (end - start) * 1e-9,
                        before,
                        dict(metrics),
                    )
                )

    @staticmethod
    def _enter_scope(names: tuple[str, ...]) -> int:
        """Let the program be in these scopes from now on; return the time."""
        now = time.perf_counter_ns()
        profile._open = names
        for p in profile._running:
            p._marks.append((now, names))
        return now

    def note(self, scope: Scope) -> None:
        self.scopes.append(scope)

    def _native(self) -> Iterator[Finished]:
        """Yield the launches by native code, which know the scopes by their time."""
        times = [m[0] for m in self._marks]
        for row in self._blocks.rows():
            scopes = self._marks[bisect_right(times, row.start) - 1][1]
            yield self._kernels[row.tag], row.grid, row.start, row.seconds, scopes, EMPTY

    # --- the result -----------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Turn what was recorded into `launches`; waits for the work of GPUs. Called at the end of the context."""
        raw, self._raw = self._raw, []
        finished = [
            (kernel, grid, start, self._seconds(start, end, pair), scopes, metadata)
            for kernel, grid, start, end, pair, scopes, metadata in raw
        ]
        finished += self._native()
        finished.sort(key=lambda x: x[2])
        for kernel, grid, start, seconds, scopes, metadata in self._timed(finished):
            if seconds is None:
                continue
            metrics = self._metrics(kernel, grid, metadata)
            name = str(metrics.pop("name", kernel.name))
            numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
            begin, device = (start - self._origin) * 1e-9, str(kernel.target)
            self.launches.append(
                Launch(name, grid, device, begin, seconds, scopes, numbers, kernel.hash)
            )

    def _timed(self, finished: list[Finished]) -> Iterator[Finished]:
        """Yield launches with the times that CUPTI has; it is given up."""
        activity, self._activity = self._activity, None
        ours = [x for x in finished if x[3] is None]
        if activity is not None:
            _synchronize(self._devices)
            times = iter(seconds_of([x[0].name for x in ours], activity.finish()))
            finished = [x if x[3] is not None else (*x[:3], next(times), *x[4:]) for x in finished]
        yield from finished

    def _seconds(self, start: int, end: int, pair: tuple[int, int] | None) -> float | None:
        if pair is None:
            return (end - start) * 1e-9
        if pair is BY_CUPTI:
            return None
        self._spare += pair
        return cuda.driver().elapsed_ms(*pair) * 1e-3

    def _metrics(
        self, kernel: CompiledKernel, grid: tuple[int, ...], metadata: LazyDict
    ) -> dict[str, Any]:
        found = {k: v for k, v in metadata.get().items() if k not in ("function", "stream")}
        if not self.counts or metadata.launch is None or "bytes" in found:
            return found
        key = (kernel.hash, grid)
        if key not in self._counted:
            report = kernel.explain(*metadata.launch[2], grid=grid)
            self._counted[key] = {
                "bytes": report.roofline.bytes_of_memory,
                "flops": report.roofline.flops,
            }
        return {**found, **self._counted[key]}

    def tree(self) -> Node:
        """Return launches by scope and kernel."""
        return tree(self.launches, self.scopes)

    def __str__(self) -> str:
        shown = output.text(self.tree())
        return f"{shown}\ntimes on the GPU by {self.gpu_timer}" if self.gpu_timer else shown

    def save(self, path: str | Path) -> Path:
        """Write a file: Hatchet's JSON if its name ends in `.hatchet`, the tree as text for `.txt`, else a trace."""
        place = Path(path)
        if place.suffix == ".hatchet":
            shown = output.hatchet(self.tree(), sorted({x.device for x in self.launches}))
        else:
            shown = (
                str(self)
                if place.suffix == ".txt"
                else output.chrome_trace(self.launches, self.scopes)
            )
        place.write_text(shown, encoding="utf-8")
        return place


EMPTY = LazyDict({})
BY_CUPTI = (0, 0)  # in place of events


def _synchronize(devices: Iterable[int]) -> None:
    """Wait for all work of some GPUs; the current one stays."""
    api = cuda.driver()
    before = api.current_device()
    for device in (*devices, before):
        api.bind(device)
        api.synchronize()


class Before:
    """The hook in front of launches. `timing` spares native launches of most kernels the hooks."""

    def __init__(self, profile: profile) -> None:
        self.profile, self.timing = profile, profile.timing

    def __call__(self, metadata: LazyDict) -> None:
        self.profile.enter(metadata)


def declared(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return those of a scope's metrics that are numbers."""
    return {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
