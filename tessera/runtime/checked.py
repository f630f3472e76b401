"""Launching checked builds on the host: extents of the arrays in, the report of the first bad element out."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.compiler.kernel import CompiledKernel

HEADER = 4  # words of a report before its values: program, lock, check, element
NOTHING = (1 << 63) - 1  # in place of the program while there is no report


@contextmanager
def hosted(args: Sequence[Any]) -> Generator[list[Any]]:
    """The arguments with tensors of a GPU as host tensors of the same storages, copied back at the end."""
    storages: dict[int, tuple[Any, Any]] = {}  # by address → storage on the device, its copy

    def on_host(x: Any) -> Any:
        if not getattr(x, "is_cuda", False):
            return x
        storage = x.untyped_storage()
        _, copy = storages.setdefault(storage.data_ptr(), (storage, storage.cpu()))
        view = x.new_empty(0, device="cpu")
        return view.set_(copy, x.storage_offset(), x.shape, x.stride())

    yield [on_host(x) for x in args]
    for storage, copy in storages.values():
        storage.copy_(copy)


def checked_launcher(kernel: CompiledKernel, start: Callable[..., None]) -> Callable[..., None]:
    """The launcher of a checked build; `start(gx, gy, gz, *arguments)` runs it."""
    interp: Any = importlib.import_module("tessera.interp")  # needs NumPy, which is slow to import
    rows: list[dict[str, Any]] = kernel.metadata.checks
    kinds: list[str] = kernel.metadata.args
    words = HEADER + max((sum(row["counts"]) for row in rows), default=0)

    def launch(gx: int, gy: int, gz: int, stream: int, *args: Any) -> None:
        own = kinds[: len(args)]
        report = (ctypes.c_int64 * words)(NOTHING)
        with hosted(args) as host:
            values = [
                interp.address_of(x) if kind.startswith("*") else x
                for kind, x in zip(own, host, strict=True)
            ]
            extents = interp.extents_of(own, host)
            start(gx, gy, gz, *values, *extents, ctypes.addressof(report))
            program, _, check, element, *rest = report
            if program != NOTHING:
                at = (program % gx, program // gx % gy, program // (gx * gy))
                found = interp.from_words(rows[check], iter(rest))
                raise interp.failure(rows[check], at, element, found)

    return launch
