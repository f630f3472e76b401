"""Constants of the compiler say where they come from; those that were fitted have what measures them in tools/fit."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tessera
from tools.fit import with_value
from tools.fit.__main__ import find, main, table, time_of
from tools.fit.constants import FITS

PACKAGE = Path(tessera.__file__).parent
FOLDERS = (
    "analysis", "backends", "compiler", "config", "frontend", "interp", "ir", "language", "layout", "ops", "passes",
    "runtime", "tools",
)  # fmt: skip
# Numbers whose names say what they are, and that matrix multiplication on CPUs looks up in its plan.
CLEAR = {"MANTISSA", "SQRT_HALF_BITS", "MOST_SLOTS", "MOST_TAGS", "MOST", "INT32_MAX"}
CLEAR |= {"_SMALLEST_NORMAL", "_LARGEST_FP32"}
FITTED = "tools/fit"


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def constants_of(text: str) -> dict[str, str]:
    """The numbers of a module by name, with what is said of each: beside it, above it or in a string below it."""
    lines, body, found = text.splitlines(), ast.parse(text).body, {}
    for node, after in zip(body, [*body[1:], None], strict=False):
        if (
            isinstance(node, ast.Assign)
            and is_number(node.value)
            and isinstance(node.targets[0], ast.Name)
        ):
            own = lines[node.lineno - 1 : node.end_lineno]
            said = [line.partition("#")[2] for line in own]
            at = node.lineno - 2
            while at >= 0 and lines[at].startswith("#"):
                said.insert(0, lines[at])
                at -= 1
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                said.append(str(after.value.value))
            found[node.targets[0].id] = " ".join(said).strip()
    return found


def all_constants() -> dict[str, str]:
    """By module and name."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in (PACKAGE / folder).rglob("*.py"):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            found |= {f"{module}.{n}": said for n, said in constants_of(path.read_text()).items()}
    return found


def test_numbers_say_what_they_are() -> None:
    bare = [
        key for key, said in all_constants().items() if not said and key.split(".")[-1] not in CLEAR
    ]
    assert not bare, "a comment with the reason, or a row in tools/fit/constants.py"


def test_fitted_numbers_have_a_row_and_rows_a_number() -> None:
    fitted = {key for key, said in all_constants().items() if FITTED in said}
    assert len(fitted) > 15
    assert fitted == {fit.key for fit in FITS}


def test_bare_numbers_are_seen() -> None:
    text = 'A = 3\nB = 1 << 4  # bytes\n# Above.\nC = -2.0\nD = 5\n"""Below."""\nE = "text"\n'
    text += "F = (\n    7  # inside\n)\n"
    said = constants_of(text)
    assert {name: bool(what) for name, what in said.items()} == {
        "A": False, "B": True, "C": True, "D": True, "F": True,
    }  # fmt: skip


@pytest.mark.parametrize("fit", FITS, ids=lambda f: f.name)
def test_today_is_among_the_values(fit: object) -> None:
    (row,) = [f for f in FITS if f is fit]
    assert getattr(importlib.import_module(row.module), row.name) in row.values
    assert (PACKAGE.parent / row.command[0]).is_file()


def test_a_value_is_set_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ModuleType("tessera.passes.made_up")
    vars(home)["ROOM"] = 4
    user = ModuleType("tessera.passes.user")
    vars(user)["ROOM"] = 4
    other = ModuleType("tessera.passes.other")
    vars(other)["ROOM"] = 9
    for m in (home, user, other):
        monkeypatch.setitem(sys.modules, m.__name__, m)
    monkeypatch.setattr(with_value, "_imports", lambda m, module, name: m is user)
    assert with_value.set_everywhere("tessera.passes.made_up", "ROOM", 5) == [
        home.__name__,
        user.__name__,
    ]
    assert (vars(home)["ROOM"], vars(user)["ROOM"], vars(other)["ROOM"]) == (5, 5, 9)


def test_the_table_is_relative_to_today() -> None:
    columns = {1.0: {"a": 2.0, "b": 8.0}, 2.0: {"a": 1.0, "b": 2.0, "c": 1.0}}
    assert table(columns, 2.0) == [
        ["time, relative", "1", "2 (today)"], ["a", "2.000", "1.000"], ["b", "4.000", "1.000"],
        ["geometric mean", "2.828", "1.000"],
    ]  # fmt: skip
    assert time_of({"times": {"tessera": 2.0}}) == 2.0
    assert time_of({"rates": {"tessera": 4.0}}) == 0.25
    assert time_of({"times": {"tessera": 2.0}, "ratios": {"torch": 0.5}}) == 2.0


def test_constants_are_found_by_the_end_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert find("effects.STREAM_BYTES").module == "tessera.backends.cpu.effects"
    with pytest.raises(SystemExit, match="0 constants are called BYTES"):
        find("BYTES")
    main(["--list"])
    assert len(capsys.readouterr().out.splitlines()) == len(FITS)
