"""Lists the instructions of traced builds, which read clocks and store them in a warp's place (ops/trace.py)."""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Lanes, Machine, Primitive, family, row
from tessera.ops.trace import TRACE_HEADER

__all__ = ["trace_begin", "trace_record"]

_PLACE = "ptr addrspace(1)"
_FIRST = 8 * TRACE_HEADER  # bytes in front of the units


def _put(m: Machine, place: Lanes, offset: int, *words: Lanes) -> None:
    """Store 64-bit words at an offset, where there is a place."""
    on = m.on & (place != 0)
    m.store("global", place + np.uint64(offset), np.stack(words, axis=1), 8, on)


@family
def trace_begin(tag: int) -> Primitive:
    text = (
        "{ .reg .pred p; .reg .b32 s; .reg .b64 c, n, w; setp.ne.u64 p, $0, 0; mov.u32 s, %smid; "
        f"mov.b64 w, {{s, {tag}}}; mov.u64 n, %globaltimer; mov.u64 c, %clock64; "
        "@p st.global.v2.b64 [$0], {w, c}; @p st.global.b64 [$0 + 16], n; }"
    )

    def meaning(m: Machine, place: Lanes) -> None:
        clock = m.place("clock")
        _put(m, place, 0, m.place("smid") | np.uint64(tag << 32), clock)
        _put(m, place, 16, clock)

    return Primitive("trace_begin", (_PLACE,), "void", text, "l,~{memory}", False, meaning, True)


@family
def trace_record(head: int | None, half: int) -> Primitive:
    """Store a clock as number `half` of the halves at `run` behind the header, and the head in front of it if there is
    one, where there is a place."""
    offset = _FIRST + 4 * half
    first, store = "", f"st.global.b32 [$1 + {offset}], $2"
    if head is not None:
        first, store = f"mov.b32 e, {head}; ", f"st.global.v2.b32 [$1 + {offset - 4}], {{e, $2}}"
    text = f"{{ .reg .pred p; .reg .b32 e; setp.ne.u64 p, $0, 0; {first}@p {store}; }}"

    def meaning(m: Machine, place: Lanes, run: Lanes, clock: Lanes) -> None:
        words = clock.astype(np.uint32)[:, None]
        if head is not None:
            words = np.insert(words, 0, head, axis=1)
        at = run + np.uint64(offset - 4 * (head is not None))
        m.store("global", at, words, 4, m.on & (place != 0))

    operands, letters = (_PLACE, _PLACE, "i32"), "l,l,r,~{memory}"
    return Primitive("trace_record", operands, "void", text, letters, False, meaning, True)


def _end(m: Machine, place: Lanes, count: Lanes, units: Lanes) -> None:
    clock = m.place("clock")
    both = count.astype(np.uint64) | units.astype(np.uint64) << np.uint64(32)
    _put(m, place, 32, both, clock)
    _put(m, place, 48, clock)


row(
    "trace_end", (_PLACE, "i32", "i32"), "void",
    "{ .reg .pred p; .reg .b64 c, n, w; setp.ne.u64 p, $0, 0; mov.b64 w, {$1, $2}; mov.u64 n, %globaltimer; "
    "mov.u64 c, %clock64; @p st.global.v2.b64 [$0 + 32], {w, c}; @p st.global.b64 [$0 + 48], n; }",
    "l,r,r,~{memory}", pure=False, machine=_end,
)  # fmt: skip
