"""Layer normalisation, forward and backward.

The gradients of weight and bias sum over all rows. Each program adds up the rows it owns in registers and then merges
its sums into one of GROUPS partial sums in memory, which a lock guards; a second kernel adds the partial sums.
"""

from __future__ import annotations

from typing import Any

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


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    x, dy, w, b = (
        device.normal(64, 300),
        device.normal(64, 300),
        device.normal(300),
        device.normal(300),
    )
    norm = LayerNorm(device, 64, 300)
    norm.forward(x, w, b)
    norm.backward(dy, x, w)
    print(
        "largest error:", common.relative_error(device.numpy(norm.db), device.numpy(dy).sum(axis=0))
    )
