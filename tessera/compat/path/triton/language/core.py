"""`triton.language.core`."""

# pyright: reportUnusedImport=false, reportUnusedFunction=false
from __future__ import annotations

from typing import Any

from tessera.compat.absent import absent
from tessera.compat.adopt import adopt
from tessera.dtypes import int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from tessera.language import core as _core
from tessera.language.core import *
from tessera.language.values import unwrap as _unwrap_if_constexpr
from tessera.runtime.arguments.specialize import type_of_string as str_to_ty

CONSTEXPR_0 = constexpr(0)  # a default that stays a compile-time value

_INTEGERS = {
    (x.primitive_bitwidth, signed): x
    for signed, row in ((True, (int1, int8, int16, int32, int64)), (False, (uint8, uint16, uint32, uint64)))
    for x in row
}  # fmt: skip


def get_int_dtype(bitwidth: int, signed: bool) -> Any:
    """The integer dtype of a width in bits (1 is the truth value)."""
    found = _INTEGERS.get((int(bitwidth), bool(signed) or int(bitwidth) == 1))
    if found is None:
        raise ValueError(f"Unsupported bitwidth {bitwidth} and signedness {signed}")
    return found


__getattr__ = absent(__name__, _core)
adopt(__name__)
