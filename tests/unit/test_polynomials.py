"""Each table of coefficients comes from tools/fit/polynomials.py."""

from __future__ import annotations

import importlib
import math

import pytest

from tools.fit.polynomials import (
    ELEMENTS,
    LIBDEVICE,
    POLYNOMIALS,
    error,
    interpolated,
    main,
    minimax,
)

ROWS = {row.name: row for row in POLYNOMIALS}
# Of functions that err by 3 to 6 ulp for other reasons.
ROUGH = {
    "ERFCX_SINGLE", "ERFINV_CENTRE", "ERFINV_TAIL", "ERFCINV_TAIL", "LGAMMA_SINGLE",
    "BESSEL_SINE", "BESSEL_J0", "BESSEL_J1", "BESSEL_Y0", "BESSEL_Y1", "BESSEL_MODULUS_0", "BESSEL_MODULUS_1",
    "BESSEL_PHASE_0", "BESSEL_PHASE_1",
}  # fmt: skip
# Written as a formula, or constants in several parts.
SERIES = {"EXP_SERIES", "EXP2_SERIES", "ATAN64", "ERF64", "ATANH", "I0_SMALL", "I1_SMALL"}
PARTS = {
    "J0_ZEROS",
    "J1_ZEROS",
    "BESSEL_J0_ZEROS",
    "BESSEL_J1_ZEROS",
}  # two zeros in two parts each


def tables(module: str) -> set[str]:
    found = vars(importlib.import_module(module))
    values = {name: getattr(x, "value", x) for name, x in found.items() if name.isupper()}
    return {
        name
        for name, x in values.items()
        if isinstance(x, tuple)
        and (len(x) > 3 or name in ROWS)  # shorter ones are mostly parts of a number
    }


@pytest.mark.parametrize("module", [ELEMENTS, LIBDEVICE])
def test_each_table_has_a_row(module: str) -> None:
    rows = {row.name for row in POLYNOMIALS if row.module == module}
    assert rows == tables(module) - SERIES - PARTS


@pytest.mark.parametrize("name", [row.name for row in POLYNOMIALS if row.nodes])
def test_interpolation_gives_the_same_numbers(name: str) -> None:
    assert tuple(interpolated(ROWS[name])) == ROWS[name].coefficients


@pytest.mark.parametrize("name", [row.name for row in POLYNOMIALS if not row.nodes])
def test_minimax_fits_err_by_a_tenth_of_a_half(name: str) -> None:
    """Of half the last place, in which a result is rounded."""
    row = ROWS[name]
    most = -23 if name in ROUGH else -27.5 if row.single else -57.5
    assert error(row, row.coefficients) < 2.0**most


@pytest.mark.parametrize("name", ["SIN", "COS"])
def test_a_minimax_fit_gives_the_same_numbers(name: str) -> None:
    assert tuple(minimax(ROWS[name])) == ROWS[name].coefficients


def test_errors_are_seen() -> None:
    row = ROWS["TANH"]
    first, *rest = row.coefficients
    assert error(row, [first * 1.0001, *rest]) > 100 * error(row, row.coefficients)


@pytest.mark.parametrize("name", ["I0", "I1"])
def test_series_are_those_of_bessel_functions(name: str) -> None:
    table = getattr(importlib.import_module(LIBDEVICE), f"{name}_SMALL").value
    order = int(name[1])
    exact = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(len(table))]
    assert table == pytest.approx(exact, rel=1e-15)


def test_the_command_prints_a_line_for_each_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["SIN", "STIRLING", "--fit"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("SIN             4 terms, fp32") and printed[0].endswith("minimax")
    assert eval(printed[1].partition("by ")[2].replace(" ", ", ")) == ROWS["SIN"].coefficients
    assert printed[2].startswith("STIRLING       10 terms, fp64")
