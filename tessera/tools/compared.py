"""Compares launches with the interpreter: each kernel launch of a program is repeated, on the same arrays, in
NumPy and without optimisations, and both results are compared up to rounding.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from tessera.config import knobs
from tessera.config.optimizations import ALL
from tessera.runtime.arguments.tensors import agree, clone, copy_into, to_numpy
from tessera.runtime.driver import driver
from tessera.runtime.jit import JITFunction

WRONG = 86  # the exit status of a program ended by a launch with different results


class Difference(SystemExit):
    """Ends the program at the first launch whose results differ; `text` says where."""

    def __init__(self, text: str) -> None:
        super().__init__(WRONG)
        self.text = text


def run_compared(program: Callable[[], Any], report: str) -> int:
    """Run a program and compare its launches. The file `report` gets the difference, or the exception."""
    comparison = Comparison()
    comparison.install()
    try:
        return program() or 0
    except Difference as found:
        _write(report, found.text)
        return WRONG
    except SystemExit as ended:
        if ended.code not in (None, 0):
            _write(report, f"the program ended with {ended.code!r}")
        raise
    except BaseException:
        _write(report, traceback.format_exc())
        raise


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Comparison:
    """Replaces `JITFunction._launch`. `skipped`: kernels that the interpreter cannot run."""

    def __init__(self) -> None:
        self.launch = JITFunction._launch  # pyright: ignore[reportPrivateUsage]
        self.count = 0
        self.nested = False
        self.skipped: set[str] = set()

    def install(self) -> None:
        def launch(
            fn: JITFunction[...],
            fast_key: Any,
            grid: Any,
            args: Any,
            kwargs: Any,
            warmup: bool = False,
        ) -> Any:
            if warmup or self.nested:
                return self.launch(fn, fast_key, grid, args, kwargs, warmup)
            return self.compared(fn, grid, args, kwargs)

        JITFunction._launch = launch  # type: ignore[method-assign]
        JITFunction._install = lambda *_: None  # type: ignore[method-assign]  no launch passes by

    def compared(self, fn: JITFunction[...], grid: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        arrays = list(dict.fromkeys(arrays_in([*args, *kwargs.values()])))
        before = [clone(x.array) for x in arrays]
        result = self.launch(fn, None, grid, args, dict(kwargs))
        after = [clone(x.array) for x in arrays]
        self.count += 1
        if fn.__name__ not in self.skipped and self._interpret(
            fn, grid, args, kwargs, arrays, before
        ):
            for x, have in zip(arrays, after, strict=True):
                if not agree(have, x.array):
                    raise Difference(self._told(fn, args, kwargs, x, have))
        for x, have in zip(arrays, after, strict=True):
            copy_into(x.array, have)
        return result

    def _interpret(
        self, fn: JITFunction[...], grid: Any, args: Any, kwargs: Any, arrays: Any, before: Any
    ) -> bool:
        """Repeat the launch by the interpreter, on the arrays as they were. Return whether it could."""
        for x, old in zip(arrays, before, strict=True):
            copy_into(x.array, old)
        chosen = driver.chosen
        driver.set_active("interpreter")
        self.nested = True
        try:
            with knobs.compilation.scope():
                knobs.compilation.dump_ir = False
                self.launch(fn, None, grid, args, {**kwargs, "disable_optimizations": ALL})
        except Exception as error:
            self.skipped.add(fn.__name__)
            print(f"tessera bisect: {fn.__name__} is not compared: {error}", file=sys.stderr)
            return False
        finally:
            self.nested = False
            driver.chosen = chosen
        return True

    def _told(self, fn: JITFunction[...], args: Any, kwargs: Any, x: _Array, have: Any) -> str:
        given = dict(zip(fn.arg_names, args, strict=False)) | kwargs
        name = next((n for n, v in given.items() if any(y == x for y in arrays_in([v]))), "?")
        mine, right = to_numpy(have).reshape(-1), to_numpy(x.array).reshape(-1)
        wrong = (mine != right) & ~((mine != mine) & (right != right))
        first = int(wrong.argmax())
        place: list[int] = []
        for extent in reversed(tuple(x.array.shape)):
            first, at = divmod(first, int(extent))
            place.insert(0, at)
        first = int(wrong.argmax())
        return (
            f"launch {self.count} of the program, kernel {fn.__name__}: argument {name!r} differs from the "
            f"interpreter in {int(wrong.sum())} of {wrong.size} elements, first in {place}: {mine[first]} for "
            f"{right[first]}"
        )


class _Array:
    """An array of a launch; two are equal if they are the same object."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Array) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


def arrays_in(values: Iterable[Any]) -> Iterator[_Array]:
    """Yield the arrays among arguments, also in tuples, and those that descriptors describe."""
    for x in values:
        if isinstance(x, (tuple, list)):
            yield from arrays_in(cast("tuple[Any, ...]", x))
        elif hasattr(x, "block_shape") and hasattr(x, "base"):
            yield from arrays_in([x.base])
        elif (
            hasattr(x, "dtype")
            and hasattr(x, "shape")
            and (hasattr(x, "clone") or hasattr(x, "copy"))
        ):
            if tuple(x.shape) or not hasattr(x, "item"):
                yield _Array(x)
