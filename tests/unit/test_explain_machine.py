"""What `explain` takes a CPU for: rates of reading, writing and products, and the times that it predicts by them."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.analysis.machines import L2_BYTES, Machine, gpu
from tessera.analysis.reports import Occupancy
from tessera.explain.predict import HIDDEN, Totals, predict
from tessera.explain.product_rates import KINDS, ProductRates
from tessera.explain.timing import PAGE, ones
from tessera.runtime.driver import driver

MIB = 1 << 20


def machine() -> Machine:
    """One core that reads 40 and 10 GB/s, writes half as much, and 20 GB/s past its caches."""
    levels = ((MIB, 40e9), (float("inf"), 10e9))
    written = ((MIB, 20e9), (float("inf"), 5e9))
    return Machine("a CPU", 1, 3e9, levels, 1e11, {"fp32": 5e10}, 0.0, 0.0, written, 20e9)


@pytest.mark.parametrize(
    ("size", "streamed", "seconds"),
    [
        (MIB // 4, False, MIB / 4 / 40e9 + MIB / 4 / 20e9),
        (4 * MIB, False, 4 * MIB / 10e9 + 4 * MIB / 5e9),
        (4 * MIB, True, 4 * MIB / 10e9 + 4 * MIB / 20e9),
    ],
)
def test_reading_and_writing_have_rates_of_their_own(size: int, streamed: bool, seconds: float):
    t = Totals({"x": size}, {"y": size}, {"x": size, "y": size}, fetched=0.0, streamed=streamed)
    found = predict(t, machine(), False, None)
    assert found.times["memory"] == pytest.approx(seconds)
    assert found.predicted == pytest.approx(seconds)
    assert found.bound == "memory"


def test_arithmetic_hides_a_part_of_the_memory():
    t = Totals({"x": 4 * MIB}, sizes={"x": 4 * MIB}, products={"fp32": 1e9, "fp8": 1e9})
    found = predict(t, machine(), False, None)
    assert found.times["matrix products"] == pytest.approx(2e9 / 5e10), "as fp32, unless measured"
    assert found.predicted == pytest.approx(0.04 + (1 - HIDDEN) * 4 * MIB / 10e9)


@pytest.mark.parametrize(("ctas", "busiest"), [(1, 132), (64, 132 / 64), (132, 1), (200, 1.32)])
def test_work_of_few_ctas_takes_as_long_as_the_busiest_sm(ctas: int, busiest: float):
    h200, of_sm = gpu(90), 2
    occupancy = Occupancy(of_sm, 8, 0.125, {}, [], ctas / (of_sm * 132))
    t = Totals({"x": 1e6}, operations=1e9, fetched=1e6)
    found = predict(t, h200, True, occupancy)
    assert found.times["arithmetic"] == pytest.approx(busiest * 2e9 / h200.flops)
    l2 = L2_BYTES * 132 * h200.clock
    assert found.times["caches"] == pytest.approx(busiest * 1e6 / l2)
    assert found.times["memory"] == pytest.approx(1e6 / h200.bandwidth())
    assert found.bound == "arithmetic"
    t = Totals({"x": 12e3}, operations=1e3, fetched=12e3)
    assert predict(t, h200, True, occupancy).bound == "launch"


def test_a_gpu_writes_as_fast_as_it_reads():
    h200 = gpu(90)
    assert h200.writing(1 << 30) == h200.bandwidth(1 << 30)


def test_products_are_measured_when_they_are_asked_for():
    driver.set_active("cpu")
    try:
        rates = ProductRates(2)
        assert not rates.found
        assert rates.get("fp4") is None
        assert 1e8 < rates["fp32"] < 1e14
        assert list(rates.found) == ["fp32"]
        assert rates["fp32"] == rates.found["fp32"]
        assert list(rates) == list(KINDS)
        assert len(rates) == len(KINDS)
    finally:
        driver.reset_active()


@pytest.mark.parametrize(("kind", "value"), [("fp32", 1.0), ("fp16", 1.0), ("i8", 1)])
def test_arrays_of_ones(kind: str, value: float):
    x = ones(kind, 100, 640)
    assert x.ctypes.data % PAGE == 640
    codes = {"fp32": np.float32, "fp16": np.float16, "i8": np.int8}
    assert (x.view(codes[kind]) == value).all()
