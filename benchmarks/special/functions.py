"""The element-wise functions of `tl.math` and `libdevice` that Triton has, and a kernel's text for each of them."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = "xyzt"  # of a function's operands
ELEMENTS = {"fp32": 1 << 27, "bf16": 1 << 28, "i32": 1 << 27, "i64": 1 << 26}
TYPES = {"i": "i32", "l": "i64", "fp32": "fp32", "i32": "i32", "i64": "i64"}
BLOCKS = (512, 1024)  # elements of a program of four warps


@dataclass(frozen=True)
class Function:
    """`text` computes it from operands called x, y, z, t; `kinds` are their types ("f": fp32, or bf16 widened);
    `ranges`: their numbers are uniform in there. `result`: the type of what is stored, "f" as the operands. `exact`:
    every bit is defined. `wide` has the function of which fp64 gives the reference, if it is not the same text."""

    name: str
    text: str
    kinds: str = "f"
    ranges: tuple[tuple[float, float], ...] = ((-10.0, 10.0),)
    result: str = "f"
    exact: bool = False
    wide: str = ""

    def range_of(self, place: int) -> tuple[float, float]:
        return self.ranges[min(place, len(self.ranges) - 1)]


def _each(
    names: str,
    low: float,
    high: float,
    kinds: str = "f",
    prefix: str = "libdevice.",
    exact: bool = False,
    result: str = "f",
) -> list[Function]:
    given = ", ".join(NAMES[: len(kinds)])
    return [
        Function(
            (prefix + name).removeprefix("libdevice."), f"{prefix}{name}({given})", kinds, ((low, high),), result, exact
        )
        for name in names.split()
    ]  # fmt: skip


def _modes(families: str, low: float, high: float, kinds: str, result: str = "f") -> list[Function]:
    names = [f"{family}_{mode}" for family in families.split() for mode in ("rn", "rz", "rd", "ru")]
    return _each(" ".join(names), low, high, kinds, exact=True, result=result)


def _fast(names: str, low: float, high: float, kinds: str = "f") -> list[Function]:
    given = ", ".join(NAMES[: len(kinds)])
    return [
        Function(
            f"fast_{n}f", f"libdevice.fast_{n}f({given})", kinds, ((low, high),),
            wide="x / y" if n == "divide" else f"libdevice.{n}({given})",
        )
        for n in names.split()
    ]  # fmt: skip


FUNCTIONS = (
    Function("copy", "x", exact=True),
    Function("copy2", "x + y", "ff", exact=True),
    Function("copy3", "x + y + z", "fff", exact=True),
    Function("copy4", "x + y + (z + t)", "ffff", exact=True),
    # tl.math
    *_each("exp exp2 sin cos erf", -10, 10, prefix="tl."),
    *_each("log log2 rsqrt sqrt sqrt_rn", 0.01, 100, prefix="tl."),
    *_each("abs ceil floor", -10, 10, prefix="tl.", exact=True),
    *_each("div_rn fdiv", -10, 10, "ff", prefix="tl."),
    *_each("sigmoid", -10, 10, prefix="tl."),
    Function("x / y", "x / y", "ff"),
    Function("x / 3", "x / 3.0"),
    # libdevice
    *_each("exp exp10 exp2 expm1 sinh cosh tanh asinh erf erfc normcdf sin cos tan sinpi cospi atan", -10, 10),
    *_each("erfcx cbrt rcbrt cyl_bessel_i0 cyl_bessel_i1", -9, 9),
    *_each("acos asin atanh erfinv", -1, 1),
    *_each("erfcinv", 0, 2),
    *_each("normcdfinv", 0, 1),
    *_each("acosh", 1, 20),
    *_each("log log10 log1p log2 rsqrt", 0.01, 100),
    *_each("lgamma tgamma", -10, 20),
    *_each("j0 j1", -30, 30),
    *_each("y0 y1", 0, 30),
    *_each("abs ceil floor trunc rint nearbyint round logb saturatef", -10, 10, exact=True),
    *_each("sqrt rsqrt_rn", 0.01, 100, exact=True),
    *_each("ilogb isinf isnan finitef signbit float_as_int float_as_uint", -10, 10, exact=True, result="i32"),
    *_each("llrint llround", -10, 10, exact=True, result="i64"),
    *_each("atan2 hypot rhypot", -10, 10, "ff"),
    Function("pow", "libdevice.pow(x, y)", "ff", ((0.1, 10), (-9, 9))),
    Function("pow of an int", "libdevice.pow(x, y)", "fi", ((-2, 2), (-9, 9)), wide="libdevice.pow(x, y)"),
    Function("pow 2.5", "libdevice.pow(x, 2.5)", "f", ((0.1, 10),)),
    *_each("fmod remainder fdim copysign nextafter", -10, 10, "ff", exact=True),
    Function("fmod, far", "libdevice.fmod(x, y)", "ff", ((-1e9, 1e9), (-10, 10)), exact=True),
    *_each("norm3d rnorm3d", -10, 10, "fff"),
    *_each("norm4d rnorm4d", -10, 10, "ffff"),
    *_each("ldexp scalbn", -20, 20, "fi", exact=True),
    *_fast("sin cos tan exp exp10", -3, 3),
    *_fast("log log2 log10", 0.1, 9),
    *_fast("divide", 0.1, 9, "ff"),
    *_fast("pow", 0.1, 9, "ff"),
    *_each("fma", -10, 10, "fff", exact=True),
    *_modes("add sub mul div", -10, 10, "ff"),
    *_modes("fma", -10, 10, "fff"),
    *_modes("rcp sqrt", 0.1, 10, "f"),
    *_modes("float2int float2uint", 0, 99, "f", "i32"),
    *_modes("float2ll float2ull", 0, 99, "f", "i64"),
    # integers
    *_each("int2float_rn int2float_rz", -1e9, 1e9, "i", exact=True, result="fp32"),
    *_each("clz popc ffs brev", -1e9, 1e9, "i", exact=True, result="i32"),
    *_each("mulhi mul24 hadd rhadd", -1e9, 1e9, "ii", exact=True, result="i32"),
    *_each("byte_perm", -1e9, 1e9, "iii", exact=True, result="i32"),
    Function("sad", "libdevice.sad(x, y, z.to(tl.uint32))", "iii", ((-1e9, 1e9),), "i32", True),
    *[
        Function(
            f"{text} of {TYPES[kind]}", text, kind * (1 + ("y" in text)), ((-1e9, 1e9), (1, 1e5)), TYPES[kind], True
        )
        for kind in "il" for text in ("x // y", "x % y", "x // 7", "x % 7", "x * y")
    ],
)  # fmt: skip


def slug(index: int) -> str:
    return f"special_{index}"


def types_of(f: Function, dtype: str) -> tuple[list[str], str]:
    """Of the operands and of the result, where floats are of `dtype`."""
    return [TYPES.get(k, dtype) for k in f.kinds], TYPES.get(f.result, dtype)


def dtypes_of(f: Function) -> list[str]:
    """The types of floats to measure it with; that of its operands for a function of integers."""
    return ["fp32", "bf16"] if "f" in f.kinds else [types_of(f, "")[0][0]]


def kernel_text(index: int, wide: bool = False) -> str:
    """A kernel of whole blocks. `wide`: of fp64, by the function of the reference."""
    f = FUNCTIONS[index]
    names = NAMES[: len(f.kinds)]
    lines = [
        "@triton.jit",
        f"def {slug(index)}({', '.join(f'{n}p' for n in names)}, out, BLOCK: tl.constexpr):",
        "    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
    ]
    for name, kind in zip(names, f.kinds):
        widened = ".to(tl.float32)" if kind == "f" and not wide else ""
        lines.append(f"    {name} = tl.load({name}p + i){widened}")
    text = (f.wide or f.text) if wide else f.text
    lines.append(f"    tl.store(out + i, {text})")
    return "\n".join(lines) + "\n"


HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"


def module_text(wide: bool = False) -> str:
    return "\n\n".join([HEAD, *(kernel_text(i, wide) for i in range(len(FUNCTIONS)))])
