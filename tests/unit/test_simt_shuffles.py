"""Exchanges within warps: the numbers they give, lane by lane, and the selects that they take."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tessera.backends.gpu.module import lower_module
from tessera.backends.llvm import binding
from tessera.backends.nvidia.backend import architecture
from tessera.backends.nvidia.emit import NvidiaTarget
from tessera.backends.nvidia.simulator import run_kernel
from tessera.backends.nvidia.target import facts_for
from tessera.layout import LinearLayout
from tests.gpu import shared_kernels as kernels

CC = 80
SHARED = 16384  # for what shuffles cannot do
KINDS = {"fp64": "i8", "fp32": "i4", "fp16": "i2", "i16": "i2", "i8": "i1", "fp8e5": "i1"}
RNG = np.random.default_rng(17)


def converted(src: LinearLayout, dst: LinearLayout, elem: str) -> str:
    """The LLVM IR of y = x, read in one layout and written in the other; its numbers are those of x."""
    kernel = kernels.conversion(src, dst, elem)
    facts = replace(facts_for(CC), warp_exchanges=False)  # not through shared memory
    text = lower_module(kernel.module(facts), NvidiaTarget(CC, facts))
    name = re.search(r"define .*@(\w+)\(", text)
    assert name is not None
    kind = np.dtype(KINDS[elem])
    x = RNG.integers(0, 100, src.num_elements).astype(kind)
    y = np.zeros_like(x)
    run_kernel(text, name[1], [x, y], 32 * src.size("warp"), SHARED)
    np.testing.assert_array_equal(x, y)
    return text


def layout(registers: list[int], lanes: list[int]) -> LinearLayout:
    """Of a row of numbers, by the place to which each bit moves."""
    bases = {"register": [[n] for n in registers], "lane": [[n] for n in lanes]}
    return LinearLayout((1 << (len(registers) + len(lanes)),), bases)


EXCHANGED = [  # the last registers of one, as bits, and the lanes of the other
    ([1, 2, 4, 256], [8, 16, 32, 64, 128], [1, 2, 4, 128], [8, 16, 32, 64, 256]),
    ([1, 2, 4, 256], [8, 16, 32, 64, 128], [128, 1, 2, 4], [8, 16, 32, 64, 256]),
    ([1, 2, 4, 256], [8, 16, 32, 64, 128], [8, 2, 4, 256], [1, 16, 32, 64, 128]),
    ([1, 2, 4, 256], [8, 16, 32, 64, 128], [8, 16, 4, 256], [1, 2, 32, 64, 128]),
    ([1, 2, 4, 256], [8, 16, 32, 64, 128], [16, 8, 32, 64], [128, 4, 2, 1, 256]),
]  # fmt: skip


@pytest.mark.parametrize("elem", KINDS)
@pytest.mark.parametrize("bits", EXCHANGED)
def test_numbers_of_every_width(bits: tuple[list[int], ...], elem: str) -> None:
    converted(layout(*bits[:2]), layout(*bits[2:]), elem)


@pytest.mark.parametrize("elem", ["fp32", "fp16", "i8"])
def test_numbers_of_random_exchanges(elem: str) -> None:
    """Of bits of registers and lanes in any order."""
    texts: list[str] = []
    for _ in range(6):
        bits = [[1 << int(b) for b in RNG.permutation(9)] for _ in range(2)]
        src, dst = (layout(order[:4], order[4:]) for order in bits)
        texts.append(converted(src, dst, elem))
    assert any("shfl" in text and "select" in text for text in texts)


@pytest.mark.parametrize(("elem", "selects"), [("fp32", 24), ("fp16", 12), ("i8", 6)])
def test_one_bit_of_registers_for_one_of_lanes(elem: str, selects: int) -> None:
    """Of each two words one is sent: a select chooses it, and two put the one that came into its place."""
    text = converted(layout(*EXCHANGED[0][:2]), layout(*EXCHANGED[0][2:]), elem)
    ptx = binding.optimise(text, binding.nvptx(architecture(CC), 84), "").to_assembly()
    assert ptx.count("shfl.sync") == selects // 3
    assert ptx.count("selp") == selects
