"""Lists the instructions of traced builds, which read clocks and store them in a warp's place (ops/trace.py)."""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Lanes, Machine, Primitive, family, row
from tessera.ops.trace import TRACE_CLOCK_BITS, TRACE_HEADER

__all__ = ["trace_begin", "trace_record"]

_PLACE = "ptr addrspace(1)"
_HIGH = TRACE_CLOCK_BITS - 32  # bits below the event in the high half of a record
_FIRST = 8 * TRACE_HEADER  # bytes in front of the records


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
def trace_record(event: int, index: int) -> Primitive:
    """Store record number `index` of the run whose first one is at `run` behind the header, where there is a place."""
    offset = _FIRST + 8 * index
    text = (
        f"{{ .reg .pred p; .reg .b32 e; setp.ne.u64 p, $0, 0; mov.b32 e, {event << _HIGH}; "
        f"@p st.global.v2.b32 [$1 + {offset}], {{$2, e}}; }}"
    )

    def meaning(m: Machine, place: Lanes, run: Lanes, clock: Lanes) -> None:
        word = clock.astype(np.uint32) | np.uint64(event << TRACE_CLOCK_BITS)
        m.store("global", run + np.uint64(offset), word[:, None], 8, m.on & (place != 0))

    operands, letters = (_PLACE, _PLACE, "i32"), "l,l,r,~{memory}"
    return Primitive("trace_record", operands, "void", text, letters, False, meaning, True)


def _end(m: Machine, place: Lanes, count: Lanes) -> None:
    clock = m.place("clock")
    _put(m, place, 32, count, clock)
    _put(m, place, 48, clock)


row(
    "trace_end", (_PLACE, "i32"), "void",
    "{ .reg .pred p; .reg .b64 c, n, w; setp.ne.u64 p, $0, 0; cvt.u64.u32 w, $1; mov.u64 n, %globaltimer; "
    "mov.u64 c, %clock64; @p st.global.v2.b64 [$0 + 32], {w, c}; @p st.global.b64 [$0 + 48], n; }",
    "l,r,~{memory}", pure=False, machine=_end,
)  # fmt: skip
