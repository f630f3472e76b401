"""Represents numbers of block-scaled formats as torch tensors: four bits (E2M1), and scales that are powers of two
(E8M0).
"""

from __future__ import annotations

import importlib
import math
from typing import Any

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three low bits; the fourth is the sign
NAN = 255  # the scale that means NaN


def _torch() -> Any:
    return importlib.import_module("torch")  # optional, and slow to import


class MXFP4Tensor:
    """`data`: a code in each byte. It is made from numbers (to nearest, ties to even), or from a shape."""

    def __init__(self, data: Any = None, size: Any = None, device: Any = None) -> None:
        self.size = tuple(size) if data is None else tuple(data.shape)
        self.device = device if data is None else data.device
        self.data: Any = None if data is None else _fp4_codes(data)

    def random(self) -> MXFP4Tensor:
        """Fill with codes of every kind."""
        torch = _torch()
        self.data = torch.randint(0, 16, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: object) -> Any:
        """Return the numbers in fp32 (or in another torch dtype)."""
        torch = _torch()
        table = torch.tensor([*VALUES, *(-v for v in VALUES)], device=self.data.device)
        return table[self.data.long()].to(dtype)

    def to_packed_tensor(self, dim: int) -> Any:
        """Pack two neighbours along `dim` into a byte, the first in its low half; an odd last one is paired with 0."""
        torch = _torch()
        rows = self.data.movedim(dim, -1)
        if rows.shape[-1] % 2:
            rows = torch.nn.functional.pad(rows, (0, 1))
        return (rows[..., ::2] | (rows[..., 1::2] << 4)).movedim(-1, dim).contiguous()

    def unpack_packed_tensor(self, packed: Any, dim: int, original_shape: Any) -> Any:
        """Return the codes that `to_packed_tensor` packed, in their shape."""
        rows = packed.movedim(dim, -1)
        codes = _torch().stack((rows & 15, rows >> 4), -1).flatten(-2)
        return codes[..., : original_shape[dim]].movedim(-1, dim).contiguous()


def _fp4_codes(x: Any) -> Any:
    torch = _torch()
    size = x.abs().float()
    codes = torch.zeros_like(size, dtype=torch.uint8)
    for i in range(7):
        middle = (VALUES[i] + VALUES[i + 1]) / 2
        codes += (size >= middle) if i % 2 else (size > middle)
    return codes | (torch.signbit(x).to(torch.uint8) << 3)


class MXScaleTensor:
    """`data`: exponents with a bias of 127, made from numbers (rounded down to a power of two) or from a shape."""

    def __init__(self, data: Any = None, size: Any = None, device: Any = None) -> None:
        self.size = tuple(size) if data is None else tuple(data.shape)
        self.device = device if data is None else data.device
        self.data: Any = None if data is None else _scale_codes(data)

    def random(self, low: float | None = None, high: float | None = None) -> MXScaleTensor:
        """Fill with powers of two from `low` to `high`, by default with all of them."""
        torch = _torch()
        first = 0 if low is None else max(0, math.floor(math.log2(low)) + 127)
        last = 254 if high is None else min(254, max(0, math.floor(math.log2(high)) + 127))
        if first > last:
            raise ValueError(f"no power of two from {low} to {high}")
        self.data = torch.randint(first, last + 1, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: object) -> Any:
        torch = _torch()
        powers = torch.exp2(self.data.double() - 127)
        return torch.where(self.data == NAN, float("nan"), powers).to(dtype)


def _scale_codes(x: Any) -> Any:
    torch = _torch()
    exponent = torch.frexp(x.double())[1] - 1
    valid = torch.isfinite(x) & (x > 0)
    return torch.where(valid, (exponent + 127).clamp(0, 254), NAN).to(torch.uint8)


__all__ = ["MXFP4Tensor", "MXScaleTensor"]
