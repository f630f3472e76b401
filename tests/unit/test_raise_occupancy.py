"""When ptxas is asked to do with a few registers less, so that an SM holds a block more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.backends.nvidia import backend
from tessera.backends.nvidia.backend import raise_occupancy
from tessera.backends.nvidia.ptxas import Assembled
from tessera.backends.nvidia.target import facts_for
from tessera.errors import PTXASError
from tessera.ir.applications import Session

FACTS = facts_for(90)
CALL = "\tcall.uni f;\n"
FREE = Assembled(b"free", "", 134, 0, 0, 0, 0, 0, ())


def ptx(threads: int = 256, ctas: int = 1, body: str = "") -> str:
    return f".maxntid {threads}\n.minnctapersm {ctas}\n{body}"


def tried(
    text: str, registers: int, shared: int, found: Assembled = FREE
) -> tuple[list[str], Assembled]:
    """The texts that were assembled again, of code that took `registers` of itself, and what was kept."""
    texts: list[str] = []

    def again(text: str) -> Assembled:
        texts.append(text)
        return found

    return texts, raise_occupancy(text, replace(FREE, registers=registers), shared, FACTS, again)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "ctas"),
    [(256, 134, 65696, 2), (128, 136, 49152, 4), (128, 183, 49152, 3), (128, 190, 74 << 10, 3)],
)
def test_one_block_more(threads: int, registers: int, shared: int, ctas: int) -> None:
    smaller = replace(FREE, cubin=b"smaller", registers=65536 // (threads * ctas), spill_stores=4)
    texts, kept = tried(ptx(threads), registers, shared, smaller)
    assert texts == [ptx(threads, ctas)]
    assert kept is smaller


@pytest.mark.parametrize(
    "found", [replace(FREE, spill_stores=96), replace(FREE, warnings=("products wait",))]
)
def test_code_that_got_worse_is_not_kept(found: Assembled) -> None:
    texts, kept = tried(ptx(), 134, 65696, found)
    assert len(texts) == 1
    assert kept is not found
    assert kept.registers == 134


@pytest.mark.parametrize(("spilled", "is_kept"), [(0, True), (4, False)])
def test_many_registers_less_must_not_spill(spilled: int, is_kept: bool) -> None:
    smaller = replace(FREE, cubin=b"smaller", registers=128, spill_stores=spilled)
    texts, kept = tried(ptx(), 152, 65696, smaller)
    assert texts == [ptx(ctas=2)]
    assert (kept is smaller) == is_kept


@pytest.mark.parametrize(
    ("threads", "shared", "ctas"), [(32, 6144, [16, 12]), (64, 18432, [8, 6]), (32, 17000, [12])]
)
def test_sixteen_warps_of_small_blocks(threads: int, shared: int, ctas: list[int]) -> None:
    """Where more than a few registers spill with so many blocks, fewer are tried, for which more may spill."""
    smaller = replace(FREE, cubin=b"smaller", registers=128, spill_stores=8)
    texts, kept = tried(ptx(threads), 184, shared, smaller)
    assert texts == [ptx(threads, ctas[0])]
    assert kept is smaller
    for spilled, registers in ((24, 128), (40, 184)):
        texts, kept = tried(ptx(threads), 184, shared, replace(smaller, spill_stores=spilled))
        assert texts == [ptx(threads, n) for n in ctas]
        assert kept.registers == registers


@pytest.mark.parametrize(("threads", "ctas", "twice"), [(512, 1, 2), (256, 2, 4), (128, 4, 8)])
@pytest.mark.parametrize("spilled", [0, 4])
def test_loops_without_products_share_an_sm(
    threads: int, ctas: int, twice: int, spilled: int
) -> None:
    smaller = replace(FREE, cubin=b"smaller", registers=64, spill_stores=spilled)
    texts, kept = tried(ptx(threads, ctas), 80, 1024, smaller)
    assert texts == [ptx(threads, twice)]
    assert (kept is smaller) == (spilled == 0)


def test_too_few_registers_are_no_error() -> None:
    def again(_: str) -> Assembled:
        raise PTXASError("ptxas failed: Insufficient registers")

    assert raise_occupancy(ptx(), FREE, 65696, FACTS, again) is FREE


@pytest.mark.parametrize(
    ("text", "registers", "shared"),
    [
        (ptx(), 168, 65696),  # too many registers to do without
        (ptx(), 128, 65696),  # two CTAs fit, three would need 80 registers
        (ptx(), 134, 120 << 10),  # no shared memory for two
        (ptx(128), 190, 77000),  # nor for three, as each takes a little beside its own
        (ptx(ctas=2), 134, 65696),  # others choose how many share an SM
        (ptx(body="setmaxnreg.inc.sync.aligned.u32 232;"), 134, 65696),  # registers change hands
        (ptx(512), 96, 1024),  # a block of a loop without products, which reads ahead
        (ptx(256, 2), 87, 1024),  # 64 registers are too few for what it reads ahead
        (ptx(512), 64, 1024),  # two of them fit
        (ptx(64, 8), 90, 1024),  # small ones have nothing but their registers
        (ptx(512, body="mma.sync.aligned"), 70, 1024),  # all registers for products
        ("", 134, 65696),
    ],
)
def test_code_that_stays(text: str, registers: int, shared: int) -> None:
    texts, kept = tried(text, registers, shared)
    assert not texts
    assert kept.registers == registers


def test_a_block_more_can_be_switched_off() -> None:
    smaller = replace(FREE, cubin=b"smaller", registers=128, spill_stores=4)
    with Session("k", frozenset({"raise-occupancy"})):
        assert tried(ptx(), 134, 65696, smaller)[0] == []
    with Session("k") as session:
        assert tried(ptx(), 134, 65696, smaller)[1] is smaller
    assert [a.name for a in session.applied] == ["raise-occupancy"]


STRAIGHT = "add;" * 999
SKIPPED = f"bra.uni $L__BB0_1;{STRAIGHT}\n$L__BB0_1:\n"
LOOP = f"$L__BB0_1:\n{STRAIGHT}\n@%p bra $L__BB0_1;"


def assembled(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    ctas: int,
    spills: dict[int, int],
    body: str = LOOP,
) -> int:
    """The CTAs on an SM that `assemble_with_room` settles for; `spills`: bytes stored and loaded, by their number."""

    def assemble(text: str, *_: object) -> Assembled:
        found = backend.CTAS.search(text)
        assert found is not None
        moved = spills.get(int(found[2]), 0)
        return replace(
            FREE, registers=int(found[2]), spill_stores=moved // 2, spill_loads=moved // 2
        )

    monkeypatch.setattr(backend.assembler, "assemble", assemble)
    done, _ = backend.assemble_with_room(ptx(threads, ctas, body), "sm_90a", [], False)
    return done.registers


@pytest.mark.parametrize(
    ("threads", "ctas", "spills", "body", "settled"),
    [
        (128, 4, {4: 100}, LOOP, 4),  # 25 of a thousand instructions
        (128, 4, {4: 144}, LOOP, 3),  # more than 3 %
        (128, 12, {12: 40, 8: 36}, STRAIGHT, 8),  # 0.9 %; with 1,536 threads nothing may
        (128, 12, {12: 400, 8: 100, 4: 100}, STRAIGHT, 3),  # 2.5 %
        (128, 12, {12: 400, 8: 100, 4: 100}, SKIPPED, 3),
    ],
)
def test_how_much_may_spill(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    ctas: int,
    spills: dict[int, int],
    body: str,
    settled: int,
) -> None:
    assert assembled(monkeypatch, threads, ctas, spills, body) == settled


def test_products_spill_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    products = "wgmma.mma_async.sync.aligned;" + "add;" * 999
    assert assembled(monkeypatch, 128, 4, {4: 8}, products) == 3


def test_a_little_spilling_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("k", frozenset({"spill-little"})):
        assert assembled(monkeypatch, 128, 4, {4: 8}) == 3
    with Session("k") as session:
        assert assembled(monkeypatch, 128, 4, {4: 8}) == 4
    assert [a.name for a in session.applied] == ["spill-little"]


@pytest.mark.parametrize(
    ("body", "registers", "spilled", "is_kept"),
    [(CALL, 37, 8, True), (CALL, 37, 24, False), (CALL, 45, 0, False), ("", 37, 0, False)],
)  # fmt: skip
def test_rare_calls_take_no_registers(
    body: str, registers: int, spilled: int, is_kept: bool
) -> None:
    smaller = replace(FREE, cubin=b"smaller", registers=32, spill_stores=spilled)
    texts, kept = tried(ptx(128, 12, body), registers, 0, smaller)
    assert texts == ([ptx(128, 16, body)] if body and registers < 40 else [])
    assert (kept is smaller) == is_kept
