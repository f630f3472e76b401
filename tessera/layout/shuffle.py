"""Plans conversions within a warp: which register each lane sends, and to whom, as linear maps.

shfl.sync.idx lets a lane read the one value that another lane offers, so a round is possible if all readers of a lane
need the same register.  Let dst register j of lane l be register R(j) ^ S(l) of lane L(j) ^ T(l) in src.

* If T is invertible, lane m = L(j) ^ T(l) is read by one lane only and knows which: it offers the register
  R(j) ^ S(T^-1(m ^ L(j))) = c_j ^ P(m) with P = S T^-1.  XOR of the register number by P(m) for all registers at once
  is a conditional exchange of registers for each bit of P (`before`); then round j offers register c_j.
* If T has a kernel (a lane bit of dst comes from a register bit of src, so that a lane bit of src goes to a register
  bit of dst), let lane l take another register in round j: j ^ F(l), with F chosen so that T + L F is invertible.
  Afterwards slot j ^ F(l) holds register j: again conditional exchanges (`after`).

Example: an 8x8 transpose held as 8 lanes x 8 registers: S and L are identities, T = 0.  F = identity makes T + L F the
identity: round j exchanges with lane l ^ j, the classic scheme with 3 + 3 rounds of exchanges of registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from .linear import LinearLayout
from .matrix_ops import Columns, Echelon, apply, transpose
from .relate import SourceMap, source_map

__all__ = ["LaneSwap", "ShuffleRound", "WarpShuffle", "plan_shuffle"]

REG32_BITS = 32  # moved by one shuffle


@dataclass(frozen=True, slots=True)
class LaneSwap:
    """Exchanges registers r and r ^ register_xor in threads where parity(lane & lane_mask) ^ parity(warp &
    warp_mask) is 1."""

    register_xor: int
    lane_mask: int
    warp_mask: int


@dataclass(frozen=True, slots=True)
class ShuffleRound:
    """Slots `receive` take the registers `send` (several narrow ones in one of 32 bits) of lane source(lane, warp) ^
    lane_xor."""

    send: tuple[int, ...]
    receive: tuple[int, ...]
    lane_xor: int


@dataclass(frozen=True, slots=True)
class WarpShuffle:
    """Exchange within each warp: `before` on the source registers, the rounds, `after` on the slots, then the outputs.

    The source lane of a round is apply(source_lane, lane) ^ apply(source_warp, warp) ^ lane_xor; without movement the
    round is a plain copy.  Slots are numbered like registers of dst; `outputs[i]` is the slot of dst register i.
    """

    before: tuple[LaneSwap, ...]
    source_lane: Columns
    source_warp: Columns
    rounds: tuple[ShuffleRound, ...]
    after: tuple[LaneSwap, ...]
    outputs: tuple[int, ...]

    def stays(self, step: ShuffleRound) -> bool:
        """Whether every lane reads its own value in this round."""
        own = all(c == 1 << i for i, c in enumerate(self.source_lane))
        return own and not any(self.source_warp) and step.lane_xor == 0

    @property
    def butterfly(self) -> bool:
        """Whether the source lane is `lane ^ lane_xor` in every round (shfl.sync.bfly)."""
        own = all(c == 1 << i for i, c in enumerate(self.source_lane))
        return own and not any(self.source_warp)

    @property
    def num_shuffles(self) -> int:
        return sum(not self.stays(step) for step in self.rounds)

    def cost(self, elem_bits: int) -> float:
        """Return shuffle passes plus half a slot for each select."""
        reg32 = max(1, elem_bits // REG32_BITS)
        slots = sum(len(step.receive) for step in self.rounds)
        selects = (len(self.before) + len(self.after)) * slots
        return 2.0 * reg32 * self.num_shuffles + 0.5 * reg32 * selects


@dataclass(slots=True)
class _Maps:
    """The maps R, S, L, T of the module's docstring, and F, while they are being adjusted."""

    reg_of_reg: list[int]
    reg_of_lane: list[int]
    reg_of_warp: list[int]
    lane_of_reg: list[int]
    lane_of_lane: list[int]
    lane_of_warp: list[int]
    shift: list[int]


def _maps(found: SourceMap) -> _Maps:
    return _Maps(
        reg_of_reg=[found.register_of(c) for c in found.register],
        reg_of_lane=[found.register_of(c) for c in found.lane],
        reg_of_warp=[found.register_of(c) for c in found.warp],
        lane_of_reg=[found.lane_of(c) for c in found.register],
        lane_of_lane=[found.lane_of(c) for c in found.lane],
        lane_of_warp=[found.lane_of(c) for c in found.warp],
        shift=[0] * len(found.lane),
    )


def _complete(maps: _Maps, src: LinearLayout, live: list[int]) -> None:
    """Raise the rank of T while readers of a lane disagree: first by other copies in src, then by F."""
    lanes = Echelon(maps.lane_of_lane)
    if not lanes.dependent:
        return
    bits = src.bits("register")
    copies = Echelon(src.columns("register") + src.columns("lane")).kernel()
    image = Echelon(maps.lane_of_lane)
    # Each kernel vector owns the lane bit that was found dependent: changing that column affects no other vector.
    for bit, combination in lanes.dependent:
        if apply(maps.reg_of_lane, combination) == 0:
            continue
        copy = next((k for k in copies if not image.contains(k >> bits)), None)
        if copy is not None:
            maps.lane_of_lane[bit] ^= copy >> bits
            maps.reg_of_lane[bit] ^= copy & ((1 << bits) - 1)
            image.add(copy >> bits)
            continue
        register = next((b for b in live if not image.contains(maps.lane_of_reg[b])), None)
        if register is not None:
            maps.shift[bit] = 1 << register
            maps.lane_of_lane[bit] ^= maps.lane_of_reg[register]
            maps.reg_of_lane[bit] ^= maps.reg_of_reg[register]
            image.add(maps.lane_of_reg[register])


def _sender_map(maps: _Maps) -> list[int] | None:
    """Return the map P with P(T(l)) = S(l) for all lanes l, and 0 elsewhere: the register that a lane sends. None if
    two readers of a lane need different ones."""
    count = len(maps.lane_of_lane)
    echelon = Echelon(maps.lane_of_lane)
    if any(apply(maps.reg_of_lane, k) for k in echelon.kernel()):
        return None
    for i in range(count):
        echelon.add(1 << i)
    sender: list[int] = []
    for i in range(count):
        combination = echelon.solve(1 << i)
        assert combination is not None
        sender.append(apply(maps.reg_of_lane, combination & ((1 << count) - 1)))
    return sender


def _swaps(lane: list[int], warp: list[int], bits: int) -> tuple[LaneSwap, ...]:
    """Exchange registers so that their numbers are XORed with maps of lane and warp, by one conditional exchange for
    each bit."""
    rows = zip(transpose(lane, bits), transpose(warp, bits), strict=True)
    return tuple([LaneSwap(1 << b, m, w) for b, (m, w) in enumerate(rows) if m or w])


def _rounds(
    maps: _Maps, sender: list[int], slots: list[int], elem_bits: int
) -> tuple[ShuffleRound, ...]:
    """Make a round for each slot; narrow elements with the same source lane share a register, and so a round."""
    by_way: dict[int, list[tuple[int, int]]] = {}
    for slot in slots:
        way = apply(maps.lane_of_reg, slot)
        by_way.setdefault(way, []).append((apply(maps.reg_of_reg, slot) ^ apply(sender, way), slot))
    packed = max(1, REG32_BITS // elem_bits)
    rounds: list[ShuffleRound] = []
    for way, pairs in by_way.items():
        for i in range(0, len(pairs), packed):
            sends, receives = zip(*pairs[i : i + packed], strict=True)
            rounds.append(ShuffleRound(tuple(sends), tuple(receives), way))
    return tuple(rounds)


def plan_shuffle(src: LinearLayout, dst: LinearLayout, elem_bits: int) -> WarpShuffle | None:
    """The exchange within each warp that turns src into dst, or None if data must cross warps (or cannot be routed)."""
    found = source_map(src, dst)
    if not found.keeps_warps:
        return None
    maps = _maps(found)
    live = Echelon(dst.columns("register")).independent
    _complete(maps, src, live)
    sender = _sender_map(maps)
    if sender is None:
        return None
    from_warp = [
        a ^ apply(sender, b) for a, b in zip(maps.reg_of_warp, maps.lane_of_warp, strict=True)
    ]
    outputs = dst.register_representatives()
    slots = sorted(set(outputs))
    return WarpShuffle(
        before=_swaps(sender, from_warp, found.register_bits),
        source_lane=tuple(maps.lane_of_lane),
        source_warp=tuple(maps.lane_of_warp),
        rounds=_rounds(maps, sender, slots, elem_bits),
        after=_swaps(maps.shift, [0] * len(maps.lane_of_warp), dst.bits("register")),
        outputs=outputs,
    )
