"""Native launches do what the complete Python path does, whatever the arguments are."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import gc
import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.tensors import TensorWrapper

N = 16
Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024


class Whole(int):
    """An int of another type."""


class Index:
    """Something with `__index__` only."""

    def __index__(self) -> int:
        return 5


class Strange(tuple):  # type: ignore[type-arg]
    """A tuple of another type."""

    __slots__ = ()


@tessera.jit
def mixed(a, b, out, f: tl.float16, s, K: tl.constexpr = 4, flag=None):
    i = tl.arange(0, 16)
    v = tl.load(a + i).to(tl.float32) * K + b + f
    if s is not None:
        v += s
    if flag is not None:
        v += 1
    tl.store(out + i, v)


@tessera.jit
def pairs(p, out, K: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(p[0] + i) * p[1] + K)


@tessera.jit
def tiles(d, out, row):
    i, j = tl.arange(0, 2), tl.arange(0, 8)
    tl.store(out + i[:, None] * 8 + j[None, :], d.load([row, 0]).to(tl.float32))


def arrays(r: random.Random, out: Any) -> Any:
    base = np.arange(4 * N).astype(r.choice([np.float32, np.int32, np.int64, np.uint8, np.float16]))
    views: list[Any] = [
        base, base[1:], base[16:], base.reshape(4, N)[1], np.frombuffer(base.tobytes(), base.dtype), out, out[:],
        TensorWrapper(np.arange(4 * N, dtype=np.uint16), tl.bfloat16), base.view(np.recarray), base[5:6].reshape(()),
        "text", base.astype(np.complex64), None,
    ]  # fmt: skip
    return r.choice(views if r.random() < 0.4 else views[:3])


def number(r: random.Random) -> Any:
    common: list[Any] = [0, 1, 2, 16, -16, 2.5, 5, 1.0, -0.0, 7]
    odd: list[Any] = [
        True, False, None, 2**31, 2**33, 2**63, 2**64, -(2**63), -(2**65), float("nan"), float("inf"), "x", Whole(3),
        np.int32(4), np.float64(2.5), np.float32(2.5), Index(), (), [], 1j, b"", object(), tl.float32, int, mixed,
    ]  # fmt: skip
    return r.choice(odd if r.random() < 0.25 else common)


def tuple_of(r: random.Random, out: Any) -> Any:
    items = (arrays(r, out), number(r))
    odd: list[Any] = [
        Pair(*items), Strange(items), list(items), (*items, 3), (items[0], items), Pair(items[0], Pair(*items)),
        items[0], items[:1], tuple([items[0], items[1]] + [r.randrange(9)] * 80),
    ]  # fmt: skip
    return items if r.random() < 0.6 else r.choice(odd)


def descriptor_of(r: random.Random) -> Any:
    base = np.arange(16 * 16).reshape(16, 16).astype(r.choice([np.float32, np.int32]))
    made = TensorDescriptor(base, [8, 16], [16, 1], [2, 8])
    if r.random() < 0.5:
        change: list[dict[str, Any]] = [
            {"shape": (5, 3)}, {"shape": [3, 3]}, {"strides": (32, 1)}, {"padding": "".join(["na", "n"])},
            {"base": base[1:]}, {"shape": (np.int64(8), 16)}, {"strides": [16, True]}, {"block_shape": (2, 8)},
            {"block_shape": [4, 8]}, {"shape": [8]}, {"strides": 3}, {"base": None}, {"base": (1, 2)},
            {"round_f32_to_tf32": 1}, {"shape": [8, 2**40]}, {"shape": [8, -1]},
        ]  # fmt: skip
        made.__dict__.update(r.choice(change))
    return made


def launch_of(r: random.Random, out: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    options: dict[str, Any] = {}
    if r.random() < 0.2:
        options["num_warps"] = r.choice([1, 2, 40, None, "x"])
    if r.random() < 0.1:
        options[r.choice(["num_stages", "maxnreg", "unknown", "out", "stream"])] = r.choice([2, 3])
    which = r.random()
    if which < 0.4:
        args: list[Any] = [arrays(r, out), number(r), out, number(r), number(r)]
        if r.random() < 0.4:
            options["K"] = r.choice([4, 8, 2.0, True, None, (1, 2), [1]])
        if r.random() < 0.2:
            options["flag"] = r.choice([None, 1, out])
        while r.random() < 0.2 and args:
            last = args.pop()
            if r.random() < 0.8:
                options[["a", "b", "out", "f", "s"][len(args)]] = last
        return mixed, tuple(args), options
    if which < 0.7:
        return pairs, (tuple_of(r, out), out), {**options, "K": r.choice([0, 1, 2.5])}
    return tiles, (descriptor_of(r), out, r.choice([0, 1, 3])), options


def outcome(call: Any, out: Any) -> Any:
    out[:] = 3
    try:
        kernel = call()
    except Exception as error:
        return type(error), None, None
    return None, kernel.hash if kernel is not None else None, out.copy()


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_agree(seed: int):
    r = random.Random(seed)
    out = np.zeros(N, np.float32)
    for _ in range(60):
        kernel, args, options = launch_of(r, out)
        grid = r.choice(
            [(1,), [1], (1, 1), lambda meta: (1,), (np.int64(1),), [np.int32(1)], (0,), (True,)]
        )

        def python() -> Any:
            return kernel._launch(None, grid, args, dict(options))  # noqa: B023

        def native() -> Any:
            return kernel[grid](*args, **options)  # noqa: B023

        wanted = outcome(python, out)
        for _ in range(3):
            found = outcome(native, out)
            assert found[:2] == wanted[:2], (kernel, args, options, grid)
            if wanted[2] is not None:
                np.testing.assert_array_equal(
                    found[2], wanted[2], err_msg=f"{kernel} {args} {options}"
                )
        if r.random() < 0.05:
            kernel.forget_fast_path()
            gc.collect()
