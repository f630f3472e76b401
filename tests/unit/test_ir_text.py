"""Printing and parsing: every opcode round-trips, and what is no IR is refused with line and caret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.dtypes import ALL_DTYPES, dtype, float16, float32, int8, pointer_type
from tessera.errors import IRError, Loc
from tessera.interp import EVALUATORS
from tessera.ir import (
    Builder,
    DescriptorType,
    Module,
    TileType,
    TokenType,
    parse_module,
    print_module,
    print_op,
    print_with_lines,
    verify,
)
from tessera.ir.core import OPCODES
from tessera.ir.text import format_attr
from tessera.ir.types import parse_type
from tessera.layout import LinearLayout
from tessera.ops import AddOp, ConstOp, FuncOp, ReturnOp
from tests.unit.op_samples import SAMPLES, kernel

NOT_EVALUATED = {"func", "return", "yield", "condition"}


# Ops of graphs have their own tests (test_graph_interp.py), and are there where something imported them.
OWN_OPCODES = {name for name in OPCODES if not name.startswith("graph.")}


@pytest.mark.parametrize("opcode", sorted(OWN_OPCODES))
def test_every_opcode_round_trips(opcode: str) -> None:
    module = parse_module(kernel(SAMPLES[opcode]))
    verify(module)
    assert opcode in {op.opcode for op in module.walk()}
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text
    assert print_module(module.clone()) == text


ALIASED = """#0 = ll<[8] register=[[1]] lane=[[2],[4]]>
#1 = ll<[8] register=[[4]] lane=[[1],[2]]>
module {num_warps=1} {
  func {name='k', kernel=True, returns=[]} () {
    %a: tile<8xi32, #0> = arange {start=0, end=8}
    %b: tile<8xi32, #1> = convert_layout %a
    %c: tile<8xi32, #1> = add %b, %b
    return []
  }
}
"""


def test_layouts_have_aliases() -> None:
    module = parse_module(ALIASED)
    a, b, c = (op.result.type.layout for op in list(module.walk())[1:4])
    assert a == LinearLayout((8,), {"register": [[1]], "lane": [[2], [4]]})
    assert b == c == LinearLayout((8,), {"register": [[4]], "lane": [[1], [2]]})
    text = print_module(module)
    assert text.count("ll<") == 2
    assert "%c: tile<8xi32, #1> = add %b, %b" in text
    assert print_module(parse_module(text)) == text
    assert "tile<8xi32, ll<[8] register=[[1]] lane=[[2],[4]]>>" in print_op(
        next(op for op in module.walk() if op.opcode == "arange")
    )
    lines = text.splitlines()
    for op, line in print_with_lines(module)[1].items():
        assert f" {op.opcode}" in lines[line - 1]
    with pytest.raises(IRError, match="#2 is not defined"):
        parse_module(ALIASED.replace("#1> = add", "#2> = add"))


def test_every_opcode_has_a_meaning() -> None:
    assert {cls.opcode for cls in EVALUATORS} == OWN_OPCODES - NOT_EVALUATED
    assert set(SAMPLES) == OWN_OPCODES


def test_every_op_says_what_it_computes() -> None:
    assert [name for name, cls in OPCODES.items() if "__doc__" not in vars(cls)] == []


@pytest.mark.parametrize("d", ALL_DTYPES, ids=str)
def test_types_round_trip(d: dtype) -> None:
    layout = LinearLayout((8,), {"register": [[1]], "lane": [[2], [4]]})
    for t in (
        d,
        pointer_type(d),
        pointer_type(pointer_type(d, const=True)),
        TileType((4, 8), d),
        TileType((8,), pointer_type(d), layout),
        TileType((3, 5), d),
        DescriptorType((16, 64), d),
        TokenType(),
    ):
        assert parse_type(t.short) == t


@pytest.mark.parametrize(
    "text", ["fp33", "tile<4xfp33>", "tile<4xfp32", "box<4xfp32>", "tile<axfp32>", "*", ""]
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(ValueError):
        parse_type(text)


ATTRIBUTES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False)
    | st.sampled_from([float16, float32, int8, pointer_type(int8), TileType((4,), float16)]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@given(ATTRIBUTES)
def test_attributes_round_trip(value: object) -> None:
    module = Module(x=value)
    again = parse_module(print_module(module))
    assert again.attrs == module.attrs
    assert format_attr(again.attrs["x"]) == format_attr(value)


def test_nan_and_minus_zero() -> None:
    again = parse_module(print_module(Module(a=float("nan"), b=-0.0)))
    assert again.attrs["a"] != again.attrs["a"]
    assert str(again.attrs["b"]) == "-0.0"


def test_what_has_no_text() -> None:
    with pytest.raises(TypeError, match="an attribute cannot hold"):
        format_attr(object())


def build(names: list[str]) -> Module:
    module = Module()
    func = FuncOp(name="k")
    module.body.append(func)
    b = Builder(func.body)
    x = func.body.add_arg(float32, "x")
    for name in names:
        x = b.emit(AddOp(x, x, names=[name]))
    b.insert(ReturnOp())
    return module


@given(st.lists(st.sampled_from(["x", "x_0", "x_1", "y", "", "größe", "x_0_0"]), max_size=12))
def test_names_stay_apart(names: list[str]) -> None:
    module = build(names)
    text = print_module(module)
    verify(parse_module(text))
    assert print_module(parse_module(text)) == text


def test_default_attributes_are_left_out() -> None:
    module = parse_module(kernel("%x: fp32 = div %f, %g {exact=False}\n"))
    assert "div %f, %g\n" in print_module(module)


def test_locations_are_comments() -> None:
    module = build(["y"])
    op = module.functions[0].regions[0].first
    assert op is not None
    op.loc = Loc("kernel.py", 7, 4)
    text = print_module(module, locations=True)
    assert "%y: fp32 = add %x, %x  // kernel.py:7:5" in text
    verify(parse_module(text))
    assert (
        print_op(ConstOp(value=1.5, results=[float32]))
        == "%0: fp32 = const {value=float('0x1.8000000000000p+0')}"
    )


# (what stands in the kernel, message, text that starts where the caret points)
MISTAKES = [
    ("%x: i32 = frobnicate %i\n", "'frobnicate' is not an operation", "frobnicate"),
    ("%x: i32 = add %i, %nix\n", "%nix is not defined", "%nix"),
    ("%x: i32 = add %i\n", "expected ','", "return"),
    ("%x: i33 = add %i, %j\n", "'i33' is not a type of a kernel signature", "i33"),
    ("%x i32 = add %i, %j\n", "expected ':'", "i32"),
    ("%i: i32 = add %i, %j\n", "%i is defined twice", "return"),
    ("%x: i32 = program_id\n", "program_id: attribute 'axis' is missing", "program_id"),
    ("%x: i32 = program_id {axis=zero}\n", "'zero' is not a literal", "zero"),
    ("%x: i32 = program_id {axis=0 more=1}\n", "expected ','", "more"),
    ("%x: i32 = program_id {axis=;}\n", "expected an attribute value", ";"),
    ("print [%i %j]\n", "expected ','", "%j"),
    ("%x: tile<8xi32, zz<1>> = convert_layout %ti\n", "'zz<1>' is not a layout", "tile<8xi32"),
    ("hint %ti {layout=@zz<1>}\n", "'zz<1>' is not a layout", "zz<1>"),
    ("if %c () {\nyield []\n}\n", "expected '('", "return"),
    ("5\n", "expected an opcode", "5"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message", "at"), MISTAKES)
def test_mistakes_have_a_caret(body: str, message: str, at: str) -> None:
    with pytest.raises(IRError) as caught:
        parse_module(kernel(body))
    head, line, caret = caught.value.message.split("\n")
    assert head.endswith(f": {message}")
    assert line[caret.index("^") :].startswith(at)
    assert "bug of tessera" not in str(caught.value)


def test_text_after_the_module() -> None:
    with pytest.raises(IRError, match="line 2: text after the module"):
        parse_module("module {} {}\n}")
