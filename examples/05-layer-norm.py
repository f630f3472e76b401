"""Layer normalisation, forward and backward.

The gradients of weight and bias sum over all rows. Each program adds up the rows it owns in registers and then merges
its sums into one of GROUPS partial sums in memory, which a lock guards; a second kernel adds the partial sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl

GROUPS = 64
PROGRAMS = 256


@tessera.jit
def forward_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, cols, eps, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    x = tl.load(x_ptr + row * cols + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(inside, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
    w = tl.load(w_ptr + at, mask=inside)
    b = tl.load(b_ptr + at, mask=inside)
    tl.store(y_ptr + row * cols + at, centred * rstd * w + b, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@tessera.jit
def backward_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, locks_ptr, rows, cols,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    inside = at < cols
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    width = tl.cast(cols, tl.int64)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        offsets = row * width + at
        dy = tl.load(dy_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        normal = tl.where(inside, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
        scaled = w * dy
        # dx is the gradient with its mean and its component along `normal` removed.
        along = tl.sum(normal * scaled, axis=0) / cols
        level = tl.sum(scaled, axis=0) / cols
        tl.store(dx_ptr + offsets, (scaled - normal * along - level) * rstd, mask=inside)
        dw += dy * normal
        db += dy

    slot = tl.program_id(0) % GROUPS
    while tl.atomic_cas(locks_ptr + slot, 0, 1) == 1:
        pass
    dw_ptrs = dw_ptr + slot * cols + at
    db_ptrs = db_ptr + slot * cols + at
    tl.store(dw_ptrs, tl.load(dw_ptrs, mask=inside) + dw, mask=inside)
    tl.store(db_ptrs, tl.load(db_ptrs, mask=inside) + db, mask=inside)
    tl.debug_barrier()  # every thread's sums must be in memory before the lock opens
    tl.atomic_xchg(locks_ptr + slot, 0)


@tessera.jit
def merge_kernel(
    dw_parts_ptr, db_parts_ptr, dw_ptr, db_ptr, cols, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < cols
    parts = tl.arange(0, GROUPS)[:, None] * cols + at[None, :]
    dw = tl.sum(tl.load(dw_parts_ptr + parts, mask=inside[None, :], other=0.0), axis=0)
    db = tl.sum(tl.load(db_parts_ptr + parts, mask=inside[None, :], other=0.0), axis=0)
    tl.store(dw_ptr + at, dw, mask=inside)
    tl.store(db_ptr + at, db, mask=inside)


class LayerNorm:
    """Buffers and launches for one shape."""

    def __init__(
        self, device: common.Device, rows: int, cols: int, eps: float = 1e-5, dtype: str = "float32"
    ) -> None:
        self.rows, self.cols, self.eps = rows, cols, eps
        self.block = tessera.next_power_of_2(cols)
        self.y, self.dx = device.empty(rows, cols, dtype=dtype), device.empty(rows, cols)
        self.mean, self.rstd = device.empty(rows), device.empty(rows)
        self.dw, self.db = device.empty(cols), device.empty(cols)
        self.parts = device.zeros(2, GROUPS, cols)
        self.locks = device.zeros(GROUPS, dtype="int32")

    def forward(self, x: Any, w: Any, b: Any) -> None:
        forward_kernel[(self.rows,)](
            x, w, b, self.y, self.mean, self.rstd, self.cols, self.eps,
            BLOCK=self.block, num_warps=4 if self.block <= 4096 else 8,
        )  # fmt: skip

    def backward(self, dy: Any, x: Any, w: Any) -> None:
        self.parts[...] = 0
        dw_parts, db_parts = self.parts[0], self.parts[1]
        backward_kernel[(min(PROGRAMS, self.rows),)](
            dy, x, w, self.mean, self.rstd, self.dx, dw_parts, db_parts, self.locks,
            self.rows, self.cols, GROUPS=GROUPS, BLOCK=self.block,
            num_warps=4 if self.block <= 2048 else 8,
        )  # fmt: skip
        merge_kernel[(tessera.cdiv(self.cols, 64),)](
            dw_parts, db_parts, self.dw, self.db, self.cols, GROUPS=GROUPS, BLOCK=64
        )


def specimens() -> list[common.Specimen]:
    def pointers(*names: str) -> dict[str, str]:
        return dict.fromkeys(names, "*fp32")

    forward = pointers("x_ptr", "w_ptr", "b_ptr", "y_ptr", "mean_ptr", "rstd_ptr")
    backward = pointers(
        "dy_ptr", "x_ptr", "w_ptr", "mean_ptr", "rstd_ptr", "dx_ptr", "dw_ptr", "db_ptr"
    )
    merge = pointers("dw_parts_ptr", "db_parts_ptr", "dw_ptr", "db_ptr")
    grouped = {"GROUPS": GROUPS, "BLOCK": 1024}
    return [
        common.Specimen(forward_kernel, {**forward, "cols": "i32", "eps": "fp32"}, {"BLOCK": 1024}),
        common.Specimen(
            backward_kernel,
            {**backward, "locks_ptr": "*i32", "rows": "i32", "cols": "i32"},
            grouped,
        ),
        common.Specimen(merge_kernel, {**merge, "cols": "i32"}, {**grouped, "BLOCK": 64}),
    ]


def numpy_forward(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps) * w + b


def numpy_backward(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centred = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
    normal, scaled = centred * rstd, w * dy
    along = (normal * scaled).mean(axis=1, keepdims=True)
    dx = (scaled - normal * along - scaled.mean(axis=1, keepdims=True)) * rstd
    return dx, (dy * normal).sum(axis=0), dy.sum(axis=0)


def references(device: common.Device, norm: LayerNorm, x: Any, w: Any, b: Any, dy: Any) -> Any:
    """The reference's forward and backward as functions to time."""
    if not device.is_gpu:
        return (
            lambda: numpy_forward(x, w, b, norm.eps),
            lambda: numpy_backward(dy, x, w, norm.eps),
        )
    import torch

    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = torch.nn.functional.layer_norm(leaves[0], (norm.cols,), leaves[1], leaves[2], norm.eps)
    return (
        lambda: torch.nn.functional.layer_norm(x, (norm.cols,), w, b, norm.eps),
        lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True),
    )


def main(device: common.Device) -> list[common.Row]:
    rows, cols = device.pick((4096, 1000), (16384, 4096))
    x, dy = device.normal(rows, cols), device.normal(rows, cols)
    w, b = device.normal(cols), device.normal(cols)
    norm = LayerNorm(device, rows, cols)
    norm.forward(x, w, b)
    norm.backward(dy, x, w)

    x64, w64, b64, dy64 = (device.numpy(t).astype(np.float64) for t in (x, w, b, dy))
    forward_error = common.relative_error(
        device.numpy(norm.y), numpy_forward(x64, w64, b64, norm.eps)
    )
    expected = numpy_backward(dy64, x64, w64, norm.eps)
    backward_error = max(
        common.relative_error(device.numpy(found), wanted)
        for found, wanted in zip((norm.dx, norm.dw, norm.db), expected)
    )
    forward_reference, backward_reference = references(device, norm, x, w, b, dy)
    shape, size = f"{rows}x{cols} fp32", 4.0 * rows * cols
    return [
        common.Row(
            "layer norm forward", shape, forward_error, 1e-5, 2 * size, "GB/s",
            device.time(lambda: norm.forward(x, w, b)), device.time(forward_reference),
        ),
        common.Row(
            "layer norm backward", shape, backward_error, 1e-5, 3 * size, "GB/s",
            device.time(lambda: norm.backward(dy, x, w)), device.time(backward_reference),
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    common.run(main)
