"""Times kernels of functions.py on the GPU, and compares their results."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from cases import in_turn
from generated.binary import launch_of

from special.functions import ELEMENTS, Function, types_of
from tessera.runtime.cuda.driver_api import driver

DEVICE = "cuda"
TORCH = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip
REP = 2.5  # ms for each binary
SAMPLES = 1 << 22  # elements whose errors are looked at
Binaries = dict[tuple[str, int], dict[str, Any]]  # by side and elements of a program


class Timer:
    def __init__(self) -> None:
        torch.zeros(1, device=DEVICE)
        driver().bind()
        self.device = torch.cuda.get_device_name()

    def operands(self, f: Function, dtype: str, count: int) -> list[Any]:
        """Uniform in the ranges of `f`, as numbers of `dtype`."""
        torch.manual_seed(0)
        found: list[Any] = []
        for place, kind in enumerate(types_of(f, dtype)[0]):
            low, high = f.range_of(place)
            if kind in ("i32", "i64"):
                found.append(torch.randint(int(low), int(high), (count,), device=DEVICE).to(TORCH[kind]))  # fmt: skip
            else:
                given = torch.rand(count, device=DEVICE) * (high - low) + low
                found.append(given.to(TORCH[kind]))
        return found

    def times(self, f: Function, dtype: str, binaries: Binaries) -> dict[str, float]:
        """ms of each side, with its fastest binary."""
        count = ELEMENTS[dtype]
        given = self.operands(f, dtype, count)
        out = torch.empty(count, dtype=TORCH[types_of(f, dtype)[1]], device=DEVICE)
        loaded: list[Any] = []
        calls = {k: _launch(b, [*given, out], count // k[1], loaded) for k, b in binaries.items()}
        found = in_turn(calls, REP, cold=False)
        for binary in loaded:
            driver().unload(binary.module)
        return {side: min(t for (s, _), t in found.items() if s == side) for side, _ in binaries}

    def errors(
        self, f: Function, dtype: str, binaries: Binaries, exact: dict[str, Any] | None
    ) -> dict[str, float]:
        """Of each side: the largest error in ulp of the result's type, or without `exact`, a function of fp64, the part
        of elements whose bits are not Triton's."""
        given = self.operands(f, dtype, SAMPLES)
        results = {
            side: _result(b, given, TORCH[types_of(f, dtype)[1]])
            for (side, _), b in binaries.items()
        }
        if exact is None:
            if not f.exact:
                return {}
            differ = _differing(results["tessera"], results["triton"])
            return {"tessera": float(differ.float().mean())}
        wide = [x.double() if x.is_floating_point() else x for x in given]
        want = _result(exact, wide, torch.float64)
        return {side: _ulps(found, want) for side, found in results.items()}


def _launch(binary: dict[str, Any], arrays: list[Any], grid: int, loaded: list[Any]) -> Callable[[], None]:  # fmt: skip
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in arrays]
    launch, made = launch_of(binary, (grid, 1, 1), pointers)
    loaded.append(made)
    return launch


def _result(binary: dict[str, Any], given: list[Any], kind: Any) -> Any:
    out, loaded = torch.empty(SAMPLES, dtype=kind, device=DEVICE), list[Any]()
    _launch(binary, [*given, out], SAMPLES // binary["block"], loaded)()
    torch.cuda.synchronize()
    driver().unload(loaded[0].module)
    return out


def _differing(a: Any, b: Any) -> Any:
    return (a != b) & ~((a != a) & (b != b))


def _ulps(found: Any, want: Any) -> float:
    """The largest error; infinite where one of them is not finite and they differ."""
    info = torch.finfo(found.dtype)
    near = want.to(found.dtype).double()
    finite = torch.isfinite(near) & torch.isfinite(found)
    if bool((_differing(found.double(), near) & ~finite).any()):
        return float("inf")
    _, exponent = torch.frexp(want.abs().clamp(min=info.tiny)[finite])
    unit = torch.ldexp(torch.full_like(want[finite], info.eps), exponent - 1)
    return float(((found.double() - want)[finite].abs() / unit).max())
