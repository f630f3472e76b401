"""What the planner of loops tells: cycles by part of an SM, predictions, runners-up and why they lost."""

# pyright: basic, reportOptionalMemberAccess=false
# a loop of which nothing overlaps has no plan
from __future__ import annotations

import json

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.analysis.loop_times import (
    LATE,
    NONE,
    ON,
    WAIT,
    LoopChoice,
    LoopPlan,
    LoopWork,
    account,
    choices,
    predicted,
)
from tessera.analysis.machines import LATENCY, SHARE, gpu
from tessera.backends.compiler import GPUTarget
from tessera.ir.applications import Session

A100, H100 = GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)
H200 = gpu(90)


@tessera.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXP: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * BN + n[None, :])
        if EXP:
            acc += tl.exp2(tl.dot(x, y))
        else:
            acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * BN + n[None, :], acc)


def explained(
    target: GPUTarget = H100, exp: bool = False, stages: int = 3, n: int = 128, k: int = 64
):
    a, b = np.zeros((128, 1024), np.float16), np.zeros((1024, n), np.float16)
    c = np.zeros((128, n), np.float32)
    return product.explain(
        a, b, c, 1024, 128, n, k, exp, grid=(1,), num_warps=8, num_stages=stages, target=target
    )


def plan_in(report):
    (loop,) = [x for x in report.schedule.loops if x.plan is not None]
    return loop.plan


# --- cycles by hand ---------------------------------------------------------------------------------------------
def test_cycles_of_a_product():
    plan = plan_in(explained())
    # 4096 operations of an SM in a clock; A once and B for each 64 rows by wgmma, both once by the TMA unit
    assert plan.cycles["tensor cores"] == pytest.approx(2 * 128 * 128 * 64 / 4096 / SHARE)
    tile = 128 * 64 * 2
    assert plan.cycles["shared memory"] == (tile + 2 * tile + 2 * tile) / 128
    assert plan.cycles["copies"] == pytest.approx(2 * tile / 48)
    assert plan.cycles["exponentials"] == 0
    assert "MMAs run on" in plan.what
    assert plan.bound in ("tensor cores", "shared memory", "copies")


def test_cycles_of_exponentials():
    plan = plan_in(explained(exp=True))
    assert plan.cycles["exponentials"] == 128 * 128 / 16
    assert (
        plan.cycles["issue slots"] == 2 * 64 * 8 / 4
    )  # exp2 and the sum, of 64 elements of each of 256 threads
    assert "MMAs are waited for" in plan.what
    assert (
        plan.bound == "waiting"
    )  # for the MMA and then for the exponentials, by one CTA of 8 warps


def test_pointers_are_copied_by_threads():
    plan = plan_in(explained(A100))
    assert plan.what == "copies 2 iterations ahead (cp.async, 3 buffers)"


# --- predictions ------------------------------------------------------------------------------------------------
def busy(tensor: float = 0.0, work: float = 0.0, copies: float = 0.0) -> dict[str, float]:
    return {
        "tensor cores": tensor,
        "shared memory": 0.0,
        "copies": copies,
        "issue slots": work,
        "exponentials": 0.0,
    }


def plan(buffers: int, ahead: int, mmas: str, ctas: int = 1, obstacle: str = "") -> LoopPlan:
    return LoopPlan(buffers, ahead, mmas, "cp.async", 1000 * buffers, ctas, obstacle)


def test_what_overlaps_is_not_added_up():
    parts = busy(1000.0, 800.0)
    assert predicted(parts, plan(4, 3, WAIT)) == 1800
    assert predicted(parts, plan(4, 2, ON)) == predicted(parts, plan(4, 2, LATE)) == 1000
    assert predicted(parts, plan(1, 0, WAIT)) == 1800 + LATENCY
    assert predicted(parts, plan(4, 3, WAIT, ctas=2)) == 1000  # the other CTA fills the gap


def test_copies_that_are_late():
    assert predicted(busy(10.0), plan(3, 2, ON)) == LATENCY / 2
    assert predicted(busy(10.0, copies=900.0), plan(3, 2, ON)) == 900


def test_all_plans_are_looked_at():
    assert list(choices([WAIT], 2)) == [(1, 0, WAIT), (2, 1, WAIT)]
    assert list(choices([ON, WAIT], 3)) == [(1, 0, WAIT), (2, 1, WAIT), (3, 1, ON), (3, 2, WAIT)]
    assert list(choices([NONE], 0)) == []


# --- why the runner-up lost -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("other", "why"),
    [
        (plan(3, 2, WAIT), "cycles an iteration more"),
        (
            plan(6, 4, LATE, obstacle="300000 bytes of shared memory, and a CTA has 232448"),
            "300000 bytes",
        ),
        (plan(5, 3, LATE, ctas=1), "1 CTAs would share an SM, not 2"),
        (plan(5, 3, LATE, ctas=2), "5000 bytes of shared memory, not 4000"),
        (plan(3, 1, LATE, ctas=2), "copies would be late"),
    ],
)
def test_reasons(other: LoopPlan, why: str):
    work = LoopWork({"fp16": 2.0**22}, instructions=2000.0)
    found = account(LoopChoice(None, work, plan(4, 2, LATE, ctas=2), (other,)), H200, 2)
    assert found.other == other
    assert why in found.why
    assert found.bound == "tensor cores"


def test_ctas_are_those_that_there_are():
    """Registers and the grid may leave fewer on an SM than shared memory has room for."""
    work = LoopWork({"fp16": 2.0**22}, instructions=2000.0)
    choice = LoopChoice(None, work, plan(4, 3, WAIT, ctas=3), (plan(3, 2, WAIT, ctas=4),))
    alone, many = account(choice, H200, 1), account(choice, H200, 8)
    assert (alone.plan.ctas, many.plan.ctas) == (1, 3)
    assert alone.cycles == pytest.approx(sum(sorted(alone.busy.values())[-2:]))
    assert alone.other is not None and alone.other.ctas == 1
    assert many.cycles == max(many.busy.values())


def test_a_loop_without_alternatives():
    found = account(LoopChoice(None, LoopWork({}), plan(2, 1, NONE), ()), H200, 8)
    assert (found.other, found.why, found.bound) == (None, "", "waiting")


# --- the report -------------------------------------------------------------------------------------------------
def test_text_and_json_have_the_plan():
    report = explained()
    shown = plan_in(report)
    text = str(report)
    assert f"plan: {shown.what}" in text
    assert f"runner-up: {shown.other}" in text
    (loop,) = [x for x in json.loads(report.json())["schedule"]["loops"] if x["plan"]]
    assert loop["plan"]["predicted"] == shown.predicted
    assert loop["plan"]["cycles"].keys() == shown.cycles.keys()


def test_a_better_plan_that_could_not_be_had_is_a_remark():
    report = explained(A100, stages=2, n=64, k=16)
    (remark,) = [r for r in report.remarks if "cycles an iteration" in r.what]
    assert "num_stages=2 allows fewer buffers" in remark.reason
    assert "num_stages" in remark.remedy


def test_nothing_is_noted_unless_asked_for():
    with Session("product") as session:
        tessera.compile(
            product.warmup(
                *[np.zeros(8, np.float16)] * 2,
                np.zeros(8, np.float32),
                1024,
                64,
                64,
                64,
                False,
                grid=(1,),
            ).src,
            A100,
        )
    assert session.plans == []
