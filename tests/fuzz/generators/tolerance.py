"""How far results of dots of arbitrary numbers may be apart: from the lengths of sums and the types they have."""

from __future__ import annotations

from tests.fuzz.generators.features import Features

# How far one addition to a sum may be off, relative to the magnitudes that are added. Tensor cores cut what does not
# fit when they align the products of a step, with a bit or two to spare; of fp8 products they keep some 14 bits.
ROUNDING = {
    "fp32": 2.0**-22,
    "fp16": 2.0**-10,
    "fp64": 2.0**-52,
    "fp8e4nv": 2.0**-13,
    "fp8e5": 2.0**-13,
}
# How far an operand is off in the instruction: tf32 is cut, three products of it leave out that of the rests.
OPERAND = {"tf32": 2.0**-10, "tf32x3": 2.0**-20}
STORED = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp8e4nv": 2.0**-4, "fp8e5": 2.0**-3}


def smooth(f: Features) -> None:
    """Numbers of any kind: operands are the same bits on all devices, what follows stays as exact."""
    raws = (f["a_raw"], f["b_raw"], f["v_raw"])
    count = f["k"] * max(f["steps"], 1) + f["n"] * 5 + 64
    if (
        f["type"] == "i8"
        or "int4" in raws
        or "nibble" in raws
        or count * ROUNDING[accumulated(f)] > 0.25
    ):
        f["data"] = "exact"
        return
    for side in "abv":
        kept = ("mul", "neg", "parity", "step", "turn", "reshape", "join")
        f[f"{side}_steps"] = tuple(s for s in f[f"{side}_steps"] if s[0] in kept)
    f["link"] = f["link"] if f["link"] in ("clamp", "causal") else "clamp"
    f["store"] = "plain" if f["store"] == "argmax" else f["store"]
    f["endings"] = tuple(e for e in f["endings"] if e[0] != "square")


def accumulated(f: Features) -> str:
    """What decides how sums are rounded."""
    if f["acc"] == "fp16" and f["type"] == "fp16":
        return "fp16"
    return f["type"] if f["type"] in ("fp64", "fp8e4nv", "fp8e5") else "fp32"


def tolerance(f: Features) -> float:
    """How far two results may be apart, relative to the same sums over magnitudes: each of both runs rounds every
    addition (γ of the number of terms), its operands, the link of a chain and what it stores."""
    chain, kind = f["dots"].startswith("chain"), f["type"]
    if f["data"] == "exact":
        return 0.0
    count = f["k"] * (1 if chain else f["steps"]) + 4 * f["steps"] + 16
    count += f["n"] * f["steps"] if chain else 0
    count += f["n"] if f["add"] == "fresh" or f["store"] in ("sum", "atomic") else 0
    count += f["m"] if f["store"] == "sum0" else 0
    count *= 2 if f["dots"] == "same" or f.get("inside") == "for" else 1
    grown = (1 + ROUNDING[accumulated(f)]) ** count
    grown *= (1 + OPERAND.get(kind, 0)) ** (4 if chain else 2)
    grown *= 1 + 2 * STORED.get(kind, 0) if chain else 1
    grown *= 1 + STORED.get(f["acc"] if f["out"] == "same" else f["out"], 0)
    return 2 * (grown - 1)
