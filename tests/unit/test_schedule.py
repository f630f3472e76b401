# ruff: noqa: E501  lines of IR
"""Schedules of loops (ops/schedule.py): what the verifier refuses, and that expanded loops compute what plain ones do."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tessera.errors import IRError
from tessera.interp import run
from tessera.ir import Module, parse_module, print_module, verify
from tessera.ops import ForOp
from tessera.passes.gpu_loops.expand import expand_loops
from tests.fuzz.plans import replan

# A tile is copied ahead of its iteration; two later stages follow it, each an iteration after the one before.
STAGES = """
#0 = ll<[128] register=[[1],[2]] lane=[[4],[8],[16],[32],[64]]>
#1 = ll<[128] offset=[[1],[2],[4],[8],[16],[32],[64]]>
module {num_warps=1} {
  func {name='stages'} (%p: *fp32, %q: *fp32, %n: i32) {
    %zero: i32 = const {value=0}
    %step: i32 = const {value=128}
    %r: tile<128xi32, #0> = arange {start=0, end=128}
    %ps: tile<128x*fp32, #0> = splat %p
    %qs: tile<128x*fp32, #0> = splat %q
    %to: tile<128x*fp32, #0> = addptr %qs, %r
    %first: tile<128x*fp32, #0> = addptr %ps, %r
    %by: tile<128xi32, #0> = const {value=128}
    %start: tile<128xfp32, #0> = const {value=float('0x0.0p+0')}
    %sum: tile<128xfp32, #0>, %most: tile<128xfp32, #0>, %end: tile<128x*fp32, #0> = for %zero, %n, %step, [%start, %start, %first] {main_stage=2} (%i: i32, %acc: tile<128xfp32, #0>, %high: tile<128xfp32, #0>, %at: tile<128x*fp32, #0>) {
      %x: tile<128xfp32, #0> = load %at, _, _ {stage=0}
      %s: shared<128xfp32, #1> = local_alloc %x {stage=0, slots=3, signal='SIGNAL'}
      %y: tile<128xfp32, #0> = local_load %s, _
      %f: fp32 = cast %i
      %fs: tile<128xfp32, #0> = splat %f
      %z: tile<128xfp32, #0> = mul %y, %fs {stage=3}
      %two: tile<128xfp32, #0> = add %z, %high {stage=4, position=-1}
      %next: tile<128xfp32, #0> = add %acc, %two {stage=4}
      %higher: tile<128xfp32, #0> = max %high, %y {stage=3}
      %following: tile<128x*fp32, #0> = addptr %at, %by
      yield [%next, %higher, %following]
    }
    %all: tile<128xfp32, #0> = add %sum, %most
    store %to, %all, _
    return []
  }
}
"""


def stages(signal: str = "cp.async", **changes: str) -> Module:
    text = STAGES.replace("SIGNAL", signal)
    for old, new in changes.items():
        assert old.replace("__", "=") in text
        text = text.replace(old.replace("__", "="), new)
    return parse_module(text)


def result(module: Module, blocks: int) -> np.ndarray:
    x = np.random.default_rng(blocks).standard_normal(128 * max(blocks, 1)).astype(np.float32)
    out = np.zeros(128, np.float32)
    run(module, (1,), [x, out, 128 * blocks])
    return out


@pytest.mark.parametrize("signal", ["cp.async", "mbarrier", "thread"])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 4, 7])
def test_an_expanded_loop_computes_the_same(blocks: int, signal: str) -> None:
    module = stages(signal)
    verify(module)
    want = result(module, blocks)
    expand_loops(module)
    verify(module)
    loops = [op for op in module.walk() if isinstance(op, ForOp)]
    assert len(loops) == 1
    assert loops[0].main_stage is None
    assert "stage=" not in print_module(module)
    np.testing.assert_array_equal(result(module, blocks), want)


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_schedule_computes_the_same(seed: int) -> None:
    """What the verifier takes, the expander expands: with other buffers, iterations ahead, signals and positions."""
    module = stages()
    want = [result(module, blocks) for blocks in (0, 2, 5)]
    assert replan(module, Random(seed)) or seed not in (0, 1)
    expand_loops(module)
    verify(module)
    for blocks, wanted in zip((0, 2, 5), want, strict=True):
        np.testing.assert_array_equal(result(module, blocks), wanted)


def test_a_schedule_is_text() -> None:
    text = print_module(stages())
    assert print_module(parse_module(text)) == text
    assert "{stage=0, slots=3, signal='cp.async'}" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots__3": "slots=2"}, "2 buffers are too few: 3 are in use at a time"),
        ({"'cp.async'": "'smoke'"}, "signal is none of cp.async"),
        ({"main_stage__2": "main_stage=-1"}, "the main stage is negative"),
        ({"{stage__4, position__-1}": "{stage=1}"}, "only loads may run ahead, to registers or to a ring"),
        ({"%fs {stage__3}": "%fs {stage=5}"}, "runs before mul, whose value it needs"),
        ({"mul %y, %fs {stage__3}": "mul %high, %fs"}, "runs before max, whose value it needs"),
        ({"local_load %s, _": "local_load %s, _ {stage=3}"}, "2 buffers are too few|3 buffers are too few"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(stages(**changes))


@pytest.mark.parametrize("signal", ["cp.async", "thread", "mbarrier"])
def test_copies_behind_the_reads_need_a_buffer_less(signal: str) -> None:
    """With a barrier in between: mbarriers are waited for in front of the reads, and threads wait for nothing."""
    module = stages(
        signal, **{"_, _ {stage__0}": "_, _ {stage=0, position=1}", "slots__3": "slots=2"}
    )
    if signal == "cp.async":
        want = result(stages(signal), 5)
        verify(module)
        expand_loops(module)
        np.testing.assert_array_equal(result(module, 5), want)
    else:
        with pytest.raises(IRError, match="2 buffers are too few: 3 are in use at a time"):
            verify(module)


def test_an_address_that_is_not_known_ahead_is_refused() -> None:
    text = STAGES.replace("SIGNAL", "thread").replace(
        "%x: tile<128xfp32, #0> = load %at",
        "%j: i32 = load %k, _, _\n      %js: tile<128xi32, #0> = splat %j\n      %bad: tile<128x*fp32, #0> = addptr %at, %js\n      %x: tile<128xfp32, #0> = load %bad",
    )
    text = text.replace("%n: i32)", "%n: i32, %k: *i32)")
    module = parse_module(text)
    verify(module)
    with pytest.raises(IRError, match="the address of a copy that runs ahead is not pure"):
        expand_loops(module)
