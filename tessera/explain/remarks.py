"""Makes remarks of what passes declined and of what counts show: where, why, and what the kernel's author can do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tessera.analysis.reports import AccessReport, LineReport, LoopReport, Occupancy, Remark

# A part of a pass's remark → what the author can do.
REMEDIES: tuple[tuple[str, str], ...] = (
    ("pointers for the tiles", "a contiguous fastest dimension, strides in multiples of 16 bytes, masks `index < n` "
     "with `other=0`; or `tl.make_tensor_descriptor`"),
    ("not warp-specialised", "load the tiles of the loop through tensor descriptors or plain rows; `num_stages` of 2 "
     "or more; smaller tiles if buffers do not fit"),
    ("one program a CTA", "nothing, where programs are unequal; else end the program with one store of the whole tile"),
    ("not partitioned", "`num_ctas=1`, or a program whose rows or columns are independent"),
    ("wgmma serial", "fewer registers: smaller tiles or more warps"),
    ("computed by FMAs", "operands of fp16, bf16, fp8 or int8, or fp32 with `input_precision=\"tf32\"`; 16 or more "
     "elements along K"),
    ("not of warpgroups", "`num_warps` of 4 or a multiple; tiles of 64 rows or more, whose results leave registers; "
     "16-bit operands loaded in rows of 16 elements or more"),
    ("a copy moves 16", "rows whose neighbours are one access of 16 bytes: aligned arrays, padded rows, larger tiles"),
    ("hold the same element", "larger tiles, or fewer warps"),
    ("does not ask for stages", "`tl.range(…, num_stages=n)`, where loads and stores use different arrays"),
    ("a store of the loop", "results in an array that the loop does not load from"),
    ("too much beside", "smaller tiles, or fewer loads"),
    ("not copied ahead", "addresses from the loop's index, in known steps; rows whose neighbours are one access of 4 "
     "bytes or more; `other=0`"),
    ("not started early", "smaller tiles, or more warps"),
    ("as soon as it is started", "`acc = tl.dot(a, b, acc)`, and the rest after the loop; or a second product, beside "
     "which the work on the first one runs"),
    ("not split at the branch", "a condition such as `i + BLOCK > bound`, with a bound from outside of the loop"),
    ("does not count", "`for i in tl.range(…)` without `break`"),
    ("stays in its loop", "in front of the loop, if it is right there"),
    ("not unrolled", "a step that is a compile-time int above 0"),
    ("setmaxnreg", "let the compiler choose registers: leave out `maxnreg`"),
    ("copied to memory", "store after the last use of what was loaded, to the same elements or to another array"),
    ("packed in each step", "stores and branches outside of the loop over k; an accumulator that nothing else reads"),
    ("tested for each vector", "masks `index < bound`, joined by `&`, with a bound of int32 or int64"),
    ("one element after another", "a combine function of additions, comparisons, `tl.where` and the like"),
    ("OptimizationWarning", "please report the reproducer"),
)  # fmt: skip
PLAN_REMEDIES = (
    ("num_stages", "more stages: `num_stages=` of the launch or of `tl.range`"),
    ("shared memory", "smaller tiles, so that more buffers fit"),
)
WIDTH_REMEDIES = (
    ("no more elements", "larger tiles, or fewer warps"),
    ("constancy", "a bound in multiples of 16: `n = tl.multiple_of(n, 16)` where it is true; padded rows"),
    ("divisibility", "aligned arrays and padded rows; `tl.multiple_of(first, 4)` where it is true"),
    ("contiguity", "a fastest dimension of stride 1 (`tl.constexpr`); all neighbours in one load and `tl.split`; "
     "`tl.max_contiguous` where it is true"),
)  # fmt: skip
FEW = 0.75  # coalescing below which a line is remarked
SHOWN = 4  # lines that a remark names
LOW = 0.25  # of the warps of an SM
SPLIT = re.compile(r"^(.*?): (.*)$", re.S)
PLACE = re.compile(r"\b([\w.-]+\.py:\d+)")


def passes_said(texts: Sequence[str]) -> Iterator[Remark]:
    """Return the remarks of passes (`metadata.remarks`) with remedies."""
    for text in texts:
        what, reason = (m[1], m[2]) if (m := SPLIT.match(text)) else (text, "")
        remedy = next((r for part, r in REMEDIES if part in text), "")
        where = PLACE.search(text)
        yield Remark(
            where[1] if where else "kernel",
            what,
            reason,
            remedy or "see the place that the reason names",
        )


def of_access(a: AccessReport, unit: str) -> Iterator[Remark]:
    """Return remarks about one access: narrow, or scattered over memory, which comes in sectors or in lines."""
    if a.why:
        remedy = next(
            (r for part, r in WIDTH_REMEDIES if part in a.why),
            'see docs/debugging.md, "Why is a load narrow"',
        )
        yield Remark(a.place, f"{a.what}: {a.width}", a.why, remedy)
    if a.sectors and a.coalescing < FEW:
        yield Remark(
            a.place, f"{a.what}: {a.sectors / max(1.0, a.requests):.1f} {unit}s for each request",
            f"neighbours in the tile lie apart in memory, or its rows begin within a {unit}: "
            f"{100 * a.coalescing:.0f} % of what is fetched is used",
            "let the fastest dimension of the tile be the contiguous one of the array; transpose by `tl.trans`; "
            "aligned arrays and padded rows",
        )  # fmt: skip


def of_line(line: LineReport) -> Iterator[Remark]:
    """Return remarks about a line's shared memory."""
    where = f"{line.file.rsplit('/', 1)[-1]}:{line.line}"
    if line.bank_conflicts:
        share = line.bank_conflicts / line.bank_passes
        yield Remark(
            where, f"{100 * share:.0f} % of the passes over shared memory are bank conflicts",
            "lanes of a warp access different words of one bank",
            "another order of the tile's dimensions, or wider elements; a tile that a dot uses gets a swizzle",
        )  # fmt: skip


def of_spills(lines: Sequence[LineReport], spilled: int) -> Iterator[Remark]:
    """Return a remark about the registers that a kernel spills: where most of the instructions are."""
    found = sorted((x for x in lines if x.spills), key=lambda x: -x.spills)
    if not found:
        return
    most = found[0]
    places = ", ".join(f"line {x.line} ({x.spills})" for x in found[:SHOWN])
    yield Remark(
        f"{most.file.rsplit('/', 1)[-1]}:{most.line}",
        f"{sum(x.spills for x in found)} instructions spill {spilled} bytes of registers",
        f"tiles alive there take up to {max(x.live_registers for x in lines)} registers of a thread"
        + (
            f", and {most.registers} registers are live in line {most.line}"
            if most.registers
            else ""
        )
        + f": {places}",
        "smaller tiles, more warps, or fewer tiles alive at once",
    )


def of_plans(loops: Sequence[LoopReport]) -> Iterator[Remark]:
    """Return a remark for each loop whose best plan could not be had, with what stood in its way."""
    for loop in loops:
        plan = loop.plan
        if plan is None or not plan.other or plan.other_predicted >= plan.predicted:
            continue
        yield Remark(
            loop.place, f"{plan.what}: {plan.predicted:.0f} cycles an iteration, bound by {plan.bound}",
            f"{plan.other} would take {plan.other_predicted:.0f}, but: {plan.why}",
            next((r for part, r in PLAN_REMEDIES if part in plan.why), "nothing: the estimate is one of several rules"),
        )  # fmt: skip


def of_occupancy(o: Occupancy) -> Iterator[Remark]:
    if o.waves < 1:
        yield Remark(
            "kernel", f"the grid fills {100 * o.waves:.0f} % of the GPU", "fewer CTAs than fit at a time",
            "smaller tiles, or a split of the reduction (split-K)",
        )  # fmt: skip
    elif o.share < LOW and "registers" in o.bound:
        yield Remark(
            "kernel", f"{o.warps} warps on an SM", "registers of a thread bound the occupancy",
            "smaller tiles, or more warps for the same tile; none, where tensor cores are busy",
        )  # fmt: skip
