"""Gives each instruction of PTX that assembly.py runs its function of the language.

Source: PTX ISA.
"""

# pyright: reportReturnType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tessera.dtypes import ALL_DTYPES, dtype, float32, float64, int32, int64, uint32, uint64
from tessera.language import arithmetic
from tessera.language.arithmetic import PropagateNan, where
from tessera.language.callable import library
from tessera.language.creation import cast, to_tensor
from tessera.language.extra import libdevice
from tessera.language.extra.libdevice_rounding import ROUNDED
from tessera.language.hints import static_range
from tessera.language.values import constexpr as static

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr

Function = Callable[..., object]  # of the language
Step = tuple[object, ...]  # a function, and what it takes behind the value
DTYPES = {d.name: d for d in ALL_DTYPES}
UNSIGNED = {1: DTYPES["int1"], **{n: DTYPES[f"uint{n}"] for n in (8, 16, 32, 64)}}
TYPES = {
    "pred": DTYPES["int1"], "f16": DTYPES["fp16"], "bf16": DTYPES["bf16"], "f32": float32, "f64": float64,
    **{f"{c}{n}": DTYPES[f"uint{n}"] for n in (8, 16, 32, 64) for c in "bu"},
    **{f"s{n}": DTYPES[f"int{n}"] for n in (8, 16, 32, 64)},
}  # fmt: skip
PAIRS = {
    "f16x2": DTYPES["fp16"], "bf16x2": DTYPES["bf16"], "e4m3x2": DTYPES["fp8e4nv"], "e5m2x2": DTYPES["fp8e5"]
}  # fmt: skip
LARGEST = {"e4m3x2": 448.0, "e5m2x2": 57344.0}
MODES = {"rz": "rz", "rm": "rd", "rp": "ru", "rzi": "rz", "rmi": "rd", "rpi": "ru"}
WHOLE = {"rni": libdevice.rint, "rzi": libdevice.trunc, "rmi": libdevice.floor, "rpi": libdevice.ceil}  # fmt: skip
CONVERSIONS = {"rn", "rz", "rna", "ftz", "sat", "satfinite", "relu", *WHOLE}


# --- bits --------------------------------------------------------------------------------------------------------
@library
def part(x: tensor, n: constexpr):
    return x >> n


@library
def above(low: tensor, x: tensor, n: constexpr):
    return low | (x << n)


@library
def flipped(p: tensor):
    return p == 0


@library
def _shl(x: tensor, n: tensor):
    return where(n < x.dtype.primitive_bitwidth, x << n.to(x.dtype), 0).to(x.dtype)


@library
def _shr(x: tensor, n: tensor):
    last: constexpr = x.dtype.primitive_bitwidth - 1
    y = x >> where(n > last, last, n).to(x.dtype)
    return y if x.dtype.is_int_signed() else where(n > last, 0, y).to(x.dtype)


@library
def _lop3(a: tensor, b: tensor, c: tensor, table: constexpr):
    result = a ^ a
    for i in static_range(8):
        if table >> i & 1:
            x = a if i & 4 else ~a
            y = b if i & 2 else ~b
            z = c if i & 1 else ~c
            result = result | (x & y & z)
    return result


@library
def _prmt(a: tensor, b: tensor, selector: tensor):
    result = a ^ a
    for i in static_range(4):
        chosen = (selector >> (4 * i)) & 15
        byte = (where(chosen & 4 != 0, b, a) >> ((chosen & 3) * 8)) & 255
        sign = where(byte > 127, 255, 0).to(uint32)
        result = result | (where(chosen > 7, sign, byte) << (8 * i))
    return result


@library
def _left(low: tensor, high: tensor, n: tensor):
    both = (high.to(uint64) << 32) | low.to(uint64)
    return ((both << (n & 31).to(uint64)) >> 32).to(uint32)


@library
def _right(low: tensor, high: tensor, n: tensor):
    both = (high.to(uint64) << 32) | low.to(uint64)
    return (both >> (n & 31).to(uint64)).to(uint32)


@library
def _field(x: tensor, at: tensor, n: tensor):
    least = arithmetic.minimum(at & 255, 32).to(int64)
    unused = 64 - arithmetic.minimum(n & 255, 32).to(int64)
    if x.dtype.is_int_signed():
        found = ((x.to(int64) >> least) << (unused & 63)) >> (unused & 63)
    else:
        found = (x.to(int64) >> least) & ((1 << (64 - unused)) - 1)
    return where(unused == 64, 0, found).to(x.dtype)


@library
def _insert(x: tensor, base: tensor, at: tensor, n: tensor):
    least = arithmetic.minimum(at & 255, 32).to(int64)
    mask = ((1 << arithmetic.minimum(n & 255, 32).to(int64)) - 1) << least
    return ((base.to(int64) & ~mask) | ((x.to(int64) << least) & mask)).to(x.dtype)


@library
def _signed(x: tensor):
    if x.dtype == uint64:
        return x.to(int64, bitcast=True)
    else:
        return x.to(int32, bitcast=True)


@library
def _popc(x: tensor):
    return libdevice.popc(_signed(x)).to(uint32)


@library
def _clz(x: tensor):
    return libdevice.clz(_signed(x)).to(uint32)


@library
def _brev(x: tensor):
    return libdevice.brev(_signed(x)).to(x.dtype, bitcast=True)


# --- numbers -----------------------------------------------------------------------------------------------------
@library
def _wide(x: tensor, y: tensor):
    if x.dtype.is_int_signed():
        return x.to(int64) * y.to(int64)
    else:
        return x.to(uint64) * y.to(uint64)


@library
def _high(x: tensor, y: tensor):
    return (_wide(x, y) >> x.dtype.primitive_bitwidth).to(x.dtype)


@library
def _multiply_add(x: tensor, y: tensor, z: tensor):
    return x * y + z


@library
def _negated(x: tensor):
    return -x


@library
def _inverted(x: tensor):
    return ~x


@library
def _sign_first(x: tensor, y: tensor):
    return libdevice.copysign(y, x)


@library
def _two_to(x: tensor):
    return arithmetic.exp2(x.to(float32)).to(x.dtype)


@library
def _tanh(x: tensor):
    return libdevice.tanh(x.to(float32)).to(x.dtype)


@library
def _least(x: tensor, y: tensor):
    return arithmetic.minimum(x, y, propagate_nan=PropagateNan.ALL)


@library
def _most(x: tensor, y: tensor):
    return arithmetic.maximum(x, y, propagate_nan=PropagateNan.ALL)


@library
def _select(x: tensor, y: tensor, p: tensor):
    return where(p, x, y)


@library
def _differ(x: tensor, y: tensor):
    return (x < y) | (x > y)


@library
def _relu(x: tensor):
    return where(x < 0, 0.0, x)


@library
def _limited(x: tensor, low: constexpr, high: constexpr):
    return where(x > high, high, where(x < low, low, x)).to(x.dtype)


@library
def _at_most(x: tensor, high: constexpr):
    return where(x > high, high, x).to(x.dtype)


@library
def _tf32(x: tensor):
    bits = x.to(uint32, bitcast=True)
    rounded = (bits + 0x1000) & 0xFFFFE000
    return where(bits & 0x7F800000 == 0x7F800000, bits, rounded).to(float32, bitcast=True)


def fit(words: Sequence[str], known: set[str]) -> bool:
    """Whether words may stand together behind the name of an instruction, each once."""
    given = set(words)
    return len(given) == len(words) and given <= known and all(len(given & x) < 2 for x in ALONE)


# --- instructions ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """An instruction whose last word is the type of its operands (`kinds`: t), but for unsigned numbers (u), predicates
    (p) and numbers in the text (n). `plain` is a function, or an operator of Python; `chosen` are those of some
    words, and `rounded` is the family of libdevice that rounds fp32 and fp64 as words say."""

    kinds: str
    plain: Function | str | None = None
    words: str = ""
    rounded: str = ""
    chosen: Mapping[str, Function | str] = field(default_factory=dict[str, Function | str])

    def function(self, words: Sequence[str], kind: dtype) -> Function | str:
        if not fit(words, {*self.words.split(), *self.chosen}):
            raise KeyError(words)
        if kind.is_floating() and "ne" in words:
            return _differ
        for w in words:
            if w in self.chosen:
                return self.chosen[w]
        if self.rounded and kind in (float32, float64):
            mode = next((MODES[w] for w in words if w in MODES), "rn")
            return ROUNDED[f"{self.rounded}_{mode}"][0]
        if self.plain is None or not {"rz", "rm", "rp", "sat"}.isdisjoint(words):
            raise KeyError(words)
        return self.plain


_ROUND = "rn rz rm rp ftz sat approx full"
_COMPARED = {
    **{w: w for w in ("eq", "ne", "lt", "le", "gt", "ge")}, "neu": "ne", "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"
}  # fmt: skip
ALONE = {"rn", "rz", "rm", "rp", "rna", "approx", "full", *WHOLE}, {"wide", *_COMPARED}
OPERATORS = {"+", "-", "*", "//", "%", "&", "|", "^"}
ROWS = {
    "mov": Row("t", to_tensor), "not": Row("t", _inverted), "neg": Row("t", _negated, "ftz"),
    "abs": Row("t", arithmetic.abs, "ftz"), "popc": Row("t", _popc), "clz": Row("t", _clz), "brev": Row("t", _brev),
    "ex2": Row("t", _two_to, "approx ftz"), "tanh": Row("t", _tanh, "approx"),
    "lg2": Row("t", arithmetic.log2, "approx ftz"), "sin": Row("t", arithmetic.sin, "approx ftz"),
    "cos": Row("t", arithmetic.cos, "approx ftz"), "rsqrt": Row("t", arithmetic.rsqrt, "approx ftz"),
    "rcp": Row("t", None, _ROUND, "rcp"), "sqrt": Row("t", None, _ROUND, "sqrt"),
    "add": Row("tt", "+", _ROUND, "add"), "sub": Row("tt", "-", _ROUND, "sub"),
    "mul": Row("tt", "*", _ROUND + " lo", "mul", {"hi": _high, "wide": _wide}),
    "div": Row("tt", "//", _ROUND, "div"), "rem": Row("tt", "%"), "fma": Row("ttt", arithmetic.fma, _ROUND, "fma"),
    "mad": Row("ttt", _multiply_add, _ROUND + " lo", "fma"), "and": Row("tt", "&"), "or": Row("tt", "|"),
    "xor": Row("tt", "^"), "shl": Row("tu", _shl), "shr": Row("tu", _shr),
    "min": Row("tt", arithmetic.minimum, "ftz", "", {"NaN": _least}),
    "max": Row("tt", arithmetic.maximum, "ftz", "", {"NaN": _most}),
    "copysign": Row("tt", _sign_first), "setp": Row("tt", None, "ftz", "", _COMPARED),
    "selp": Row("ttp", _select), "lop3": Row("tttn", _lop3), "prmt": Row("uuu", _prmt), "bfe": Row("tuu", _field),
    "bfi": Row("ttuu", _insert), "shf": Row("ttu", None, "wrap", "", {"l": _left, "r": _right}),
}  # fmt: skip


def conversion(words: Sequence[str], to: str, have: dtype) -> list[Step]:
    """Return the functions, with what they take besides, that `cvt` applies one after the other."""
    found: list[Step] = []
    if have.is_floating() and have.primitive_bitwidth < 32:
        found.append((cast, float32))
    if to == "tf32":
        if "rna" not in words:
            raise KeyError(to)
        return [*found, (_tf32,)]
    kind = {**TYPES, **PAIRS}[to]
    if kind.is_floating() and have.is_floating():
        return found + _to_float(words, to, kind, have)
    if not have.is_floating() and not {"rz", "rm", "rp"}.isdisjoint(words):
        raise KeyError(to)
    bits, signed = kind.primitive_bitwidth, kind.is_int() and kind.is_int_signed()
    if have.is_floating():
        mode = next((MODES[w] for w in words if w in MODES), "rn")
        wide = "ll" if bits == 64 else "int"
        name = f"{'double' if have is float64 else 'float'}2{'' if signed else 'u'}{wide}_{mode}"
        found.append((ROUNDED[name][0],))
    if kind.is_int() and (have.is_floating() or "sat" in words) and bits < 32:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        negative = signed if have.is_floating() else have.is_int_signed()
        found.append((_limited, static(low), static(high)) if negative else (_at_most, static(high)))  # fmt: skip
    return [*found, (cast, kind)]


def _to_float(words: Sequence[str], to: str, kind: dtype, have: dtype) -> list[Step]:
    found: list[Step] = [(WHOLE[w],) for w in words if w in WHOLE]
    if "relu" in words:
        found.append((_relu,))
    if "sat" in words:
        found.append((libdevice.saturatef,))
    if "satfinite" in words:
        found.append((_limited, static(-LARGEST[to]), static(LARGEST[to])))
    cut = "rz" in words and kind.primitive_bitwidth < min(have.primitive_bitwidth, 32)
    return [*found, (cast, kind, "rtz" if cut else None)]
