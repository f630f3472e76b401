"""Random kernels reach the optimisations of loops that they are there for."""

# pyright: basic
from __future__ import annotations

import pytest

from tests.fuzz import case, families
from tests.fuzz.generators import dots, reused, rows
from tests.fuzz.reach import applied, compiled, reached

SEEDS = range(1, 151)
NEGATED = (("neg", "free", "const"),)  # an operand that is computed from what is loaded
# By how many of these kernels each is reached at least; the name of what no kernel reached said nothing for long.
LEAST = {
    "wgmma": 30, "warp-specialize": 30, "software-pipeline": 10, "register-prefetch": 15, "operand-order": 10,
    "mma-chains": 8, "mma-across-iterations": 5, "mma-early-start": 4, "byte-casts": 2, "small-casts": 6,
    "refill-in-place": 1, "shared-prefetch": 5, "scattered-columns": 1, "repeated-loads": 2, "sink-past-loops": 75,
    "whole-sectors": 15, "longer-stores": 5, "shared-operands": 1, "computed-operands": 8,
    "common-addends": 8, "known-registers": 20,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_dots_reach_the_optimisations_of_loops() -> None:
    found = reached("dots", SEEDS)
    assert not {name: (found[name], least) for name, least in LEAST.items() if found[name] < least}


@pytest.mark.filterwarnings("ignore")
def test_one_tile_in_two_buffers_is_reached() -> None:
    """A tile that one product reads as it is and another transposed: of other than 16 bits from a buffer for each."""
    plain = {key: getattr(pick, "values", ((),))[0] for key, pick in reused.TABLE.items()}
    made = {
        kind: compiled(reused.build({**plain, "type": kind, "stages": 1}, 1))[0].asm["gir"]
        for kind in ("tf32", "fp16")
    }
    assert all(text.count("= wgmma %") == 2 for text in made.values())
    assert made["tf32"].count("local_alloc %b") == 2 and made["fp16"].count("local_alloc %b") == 1


def test_loops_have_triangles() -> None:
    drawn = [families.drawn("loops", n) for n in range(1, 101)]
    assert sum("<= rm[:, None]" in families.built("loops", f, 1).source for f in drawn) >= 3


@pytest.mark.filterwarnings("ignore")
def test_edges_reach_products_of_64_bits() -> None:
    found = reached("edges", range(90, 110))
    assert found["narrow-division"] and found["wide-products"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rows", "is_reached"), [(32, True), (2, False)])
def test_edges_divide_several_indices_of_a_thread(rows: int, is_reached: bool) -> None:
    drawn = {**families.drawn("edges", 64), "rows": rows, "cols": 64, "loop": 2}
    found = applied(families.built("edges", drawn, 64), "simt")
    assert ("joint-divisions" in found) == is_reached


@pytest.mark.filterwarnings("ignore")
def test_rows_reach_reductions_of_warps() -> None:
    assert reached("rows", range(1, 41))["warp-reductions"] >= 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "least"), [("dots", 4), ("loops", 4), ("rows", 1)])
def test_kernels_exchange_within_warps(family: str, least: int) -> None:
    """It is asked for once a kernel, as a feature of the GPU: what uses it is seen in the IR."""
    made = (compiled(families.built(family, families.drawn(family, n), n))[0] for n in range(1, 41))
    assert sum("within_warps" in kernel.asm["gir"] for kernel in made) >= least


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "name", "is_reached"),
    [
        ({}, "mma-across-iterations", True),
        ({"add": "rescale_row"}, "mma-across-iterations", False),
        ({"b_raw": "i8"}, "mma-across-iterations", False),
        ({"b_raw": "i8"}, "byte-casts", True),
        ({"b_raw": "i8"}, "small-casts", False),
        ({"b_raw": "int4"}, "small-casts", True),
        ({"b_raw": "i8", "maps": False}, "software-pipeline", True),
        ({"b_raw": "nibble"}, "repeated-loads", True),
        ({"b_raw": "nibble"}, "operand-order", True),
        ({"b_raw": "int4"}, "repeated-loads", False),
        ({"dots": "two_b"}, "mma-across-iterations", True),
        ({"dots": "chain", "link": "exp"}, "mma-chains", True),
        ({"dots": "chain", "link": "online", "maps": False}, "mma-chains", True),
        ({"dots": "chain", "link": "exp", "maps": False, "stages": 1}, "mma-chains", False),
        ({"b_raw": "fp32", "warps": 2}, "operand-casts", True),
        ({"b_raw": "i32", "warps": 1, "stages": 1}, "operand-casts", True),
        ({"b_raw": "fp32"}, "operand-casts", False),  # of warpgroups
        ({"b_raw": "i8", "warps": 2}, "operand-casts", False),
        ({"lower": True}, "common-addends", True),
        (
            {"dots": "chain", "link": "causal"},
            "common-addends",
            False,
        ),  # from two places, in 32 bits
        ({"warps": 2, "a_steps": NEGATED}, "computed-operands", True),
        ({"warps": 1, "a_steps": NEGATED}, "computed-operands", False),  # 16 bits
        ({"a_steps": NEGATED}, "computed-operands", False),  # of warpgroups
        ({"dots": "chain_hoisted", "warps": 2, "a_steps": NEGATED}, "shared-operands", True),
        ({"dots": "chain_hoisted", "warps": 2}, "shared-operands", False),
        ({"warps": 1, "m": 32, "n": 16}, "longer-stores", True),
        ({"warps": 1, "m": 16, "n": 16, "out": "fp16"}, "longer-stores", False),
        ({"warps": 2}, "refill-in-place", True),
        ({"warps": 4, "n": 32, "m": 32}, "refill-in-place", False),
        ({"add": "scattered"}, "scattered-columns", True),
        ({"access": "found"}, "aligned-extents", True),
        ({"access": "desc"}, "aligned-extents", False),
        ({"access": "found"}, "partial-copies", True),
        ({"access": "found", "stages": 1}, "partial-copies", False),
        ({"access": "found", "b_raw": "i8"}, "partial-copies", True),
        ({"access": "desc"}, "partial-copies", False),
        ({"access": "desc", "store": "desc"}, "warp-specialize", True),
        ({"access": "desc", "store": "desc", "seen": "number"}, "warp-specialize", False),
    ],
)
def test_conditions_and_their_neighbours(change: dict, name: str, is_reached: bool) -> None:
    plain = {key: pick.values[0] for key, pick in dots.OVERLAPPING.items()} | dots.BARE
    assert (
        name in applied(_dots({**plain, "dots": "one", "stages": 4, "loop": "runtime", **change}))
    ) == is_reached


def _dots(change: dict) -> case.Case:
    base = {key: getattr(pick, "values", ((),))[0] for key, pick in dots.TABLE.items()}
    return dots.build({**base, "dots": "one", "endings": (), **change}, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize(
    ("change", "is_reached"),
    [
        ({}, True),
        ({"short": False}, False),
        ({"mask": "none"}, False),
        ({"dots": "one"}, False),
        ({"type": "bf16"}, True),
        ({"type": "i8"}, False),
        ({"type": "i8", "k": 128, "d": 128}, True),
    ],
)
def test_chains_reach_narrow_tiles(change: dict, is_reached: bool, isa: str) -> None:
    built = _dots({"dots": "chain", "short": True, "mask": "all", "k": 64, "d": 64, **change})
    assert ("narrow-tiles" in applied(built, isa)) == is_reached


@pytest.mark.parametrize(("isa", "is_reached"), [("avx2", True), ("avx512", False)])
def test_rows_reach_lanes_without_branches(isa: str, is_reached: bool) -> None:
    found = reached("rows", range(1, 20), isa)
    assert ("branchless-lanes" in found) == is_reached
    names = (
        "whole-tiles",
        "streaming-tiles",
        "tile-prefetch",
        "scan-stores",
        "scan-columns",
        "scan-positions",
        "blocked-iterations",
    )
    assert all(found[n] for n in names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "is_reached"), [("apart", True), ("strided", False), ("last", False)]
)
def test_rows_reach_the_order_of_dimensions(layout: str, is_reached: bool) -> None:
    plain = {key: getattr(pick, "values", ((),))[0] for key, pick in rows.TABLE.items()}
    built = rows.build({**plain, "shape": (32, 32), "layout": layout}, 1)
    assert ("nearest-dimension" in applied(built)) == is_reached
