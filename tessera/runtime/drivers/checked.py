"""Launches checked builds on the host: passes the extents of the arrays and reads the report of the first bad
element."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.compiler.kernel import CompiledKernel
from tessera.config import knobs
from tessera.errors import LaunchError, TesseraError
from tessera.ops.memory import SHADOW_SITES, SHADOW_UNIT
from tessera.runtime.arguments.dlpack import Memory, memory_of, on_cuda, speaks_dlpack
from tessera.runtime.arguments.tensors import is_numpy

HEADER = 4  # words of a report before its values: program, lock, check, element
NOTHING = (1 << 63) - 1  # the value of the program while there is no report


def _foreign(x: object) -> bool:
    """Whether an array's library supports DLPack only."""
    return speaks_dlpack(x) and not is_numpy(x)


class _Memory:
    """Host memory of an array of some library, with the few members of a tensor that launches use."""

    def __init__(self, memory: Memory):
        self.memory = memory

    def data_ptr(self) -> int:
        return self.memory.address

    def untyped_storage(self) -> _Memory:
        return self

    def nbytes(self) -> int:
        return self.memory.nbytes


@contextmanager
def hosted(args: Sequence[Any]) -> Generator[list[Any]]:
    """Yield the arguments with a GPU's tensors as host tensors of the same storages; copy them back at the end."""
    storages: dict[int, tuple[Any, Any]] = {}  # by address → storage on the device, its copy

    def on_host(x: Any) -> Any:
        foreign = _foreign(x)
        if foreign and not on_cuda(x):
            return _Memory(memory_of(x))
        if not getattr(x, "is_cuda", False):
            if foreign or hasattr(x, "__cuda_array_interface__"):
                raise LaunchError(
                    f"a checked launch runs on the host, and does not know how to copy a {type(x).__name__}",
                    help="pass torch tensors, or arrays of the host",
                )
            return x
        storage = x.untyped_storage()
        _, copy = storages.setdefault(storage.data_ptr(), (storage, storage.cpu()))
        view = x.new_empty(0, device="cpu")
        return view.set_(copy, x.storage_offset(), x.shape, x.stride())

    yield [on_host(x) for x in args]
    for storage, copy in storages.values():
        storage.copy_(copy)


def noted(error: TesseraError, kernel: CompiledKernel) -> TesseraError:
    """Return an error of a checked launch, which knows the kernel then; write the page that TESSERA_CHECK_PAGE asks
    for."""
    if error.failed is not None:
        error.failed.kernel = kernel
        if knobs.runtime.check_page:
            try:
                error.save(knobs.runtime.check_page)
                error.note(f"page with the tile's elements: {knobs.runtime.check_page}")
            except OSError as failure:  # the error that was found counts more
                error.note(f"TESSERA_CHECK_PAGE={knobs.runtime.check_page}: {failure.strerror}")
    return error


def checked_launcher(kernel: CompiledKernel, start: Callable[..., None]) -> Callable[..., None]:
    """Return the launcher of a checked build; `start(gx, gy, gz, *arguments)` runs it."""
    interp = importlib.import_module("tessera.interp")  # needs NumPy, which is slow to import
    rows: list[dict[str, Any]] = kernel.metadata.checks
    kinds: list[str] = kernel.metadata.args
    sizes = (sum(row["counts"]) + -(-row["mapped"] // 8) for row in rows)
    words = HEADER + max(sizes, default=0)
    unit: int = getattr(kernel.metadata, SHADOW_UNIT, 0)
    sites: int = getattr(kernel.metadata, SHADOW_SITES, 0)

    def launch(gx: int, gy: int, gz: int, stream: int, *args: object) -> None:
        own = kinds[: len(args)]
        report = (ctypes.c_int64 * words)(NOTHING)
        with hosted(args) as host:
            values = [
                interp.address_of(x) if kind.startswith("*") else x
                for kind, x in zip(own, host, strict=True)
            ]
            shadows = interp.Shadows(unit, gx * gy * gz * sites)
            added = shadows.arguments(own, host, kernel.metadata.written)
            extents = [interp.address_of(x) for x in added]
            place = (
                (ctypes.addressof(report),) if rows else ()
            )  # nothing is checked: nothing to report
            start(gx, gy, gz, *values, *extents, *place)
            shadows.close()
            told: list[int] = list(report)
            program, _, check, element = told[:HEADER]
            if program != NOTHING:
                at = (program % gx, program // gx % gy, program // (gx * gy))
                left, row = iter(told[HEADER:]), rows[check]
                found = interp.from_words(row, left)
                bad = b"".join(x.to_bytes(8, "little", signed=True) for x in left)[: row["mapped"]]
                raise noted(interp.failure(row, at, element, found, bad, rows), kernel)

    return launch
