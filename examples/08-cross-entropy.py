"""Cross entropy over a vocabulary of 128 thousand, forward and backward.

The forward pass reads each row of logits once, ROWS pieces at a time, keeping a running maximum and sum of exponentials
for every column of its tile: a new maximum rescales the sum once for ROWS elements. The backward pass turns logits into
gradients in one more walk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl

VOCABULARY = 128_256
ROWS, BLOCK = 4, 2048
TILE = 1024  # of a gradient


@tessera.jit
def loss_kernel(
    logits_ptr, targets_ptr, loss_ptr, lse_ptr, vocabulary, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * vocabulary
    at = tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    peak = tl.full((BLOCK,), -1.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, ROWS * BLOCK):
        x = tl.load(logits_ptr + start + at, mask=start + at < vocabulary, other=-float("inf"))
        x = x.to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, axis=0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher[None, :]), axis=0)
        peak = higher
    highest = tl.max(peak, axis=0)
    lse = highest + tl.log(tl.sum(total * tl.exp(peak - highest), axis=0))
    target = tl.load(targets_ptr + row)
    tl.store(loss_ptr + row, lse - tl.load(logits_ptr + target).to(tl.float32))
    tl.store(lse_ptr + row, lse)


@tessera.jit
def gradient_kernel(
    logits_ptr, targets_ptr, lse_ptr, grad_ptr, vocabulary, scale, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1)  # neighbours in time are neighbours in memory
    offset = row.to(tl.int64) * vocabulary
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    x = tl.load(logits_ptr + offset + at, mask=inside, other=-float("inf")).to(tl.float32)
    chosen = at == tl.load(targets_ptr + row)
    grad = tl.exp(x - tl.load(lse_ptr + row)) - tl.where(chosen, 1.0, 0.0)
    tl.store(grad_ptr + offset + at, (grad * scale).to(grad_ptr.dtype.element_ty), mask=inside)


def cross_entropy(logits: Any, targets: Any, loss: Any, lse: Any) -> None:
    rows, vocabulary = logits.shape
    loss_kernel[(rows,)](
        logits, targets, loss, lse, vocabulary, ROWS=ROWS, BLOCK=BLOCK, num_warps=8
    )


def cross_entropy_gradient(logits: Any, targets: Any, lse: Any, grad: Any) -> None:
    """Gradient of the mean loss."""
    rows, vocabulary = logits.shape
    gradient_kernel[(tessera.cdiv(vocabulary, TILE), rows)](
        logits, targets, lse, grad, vocabulary, 1.0 / rows, BLOCK=TILE, num_warps=4
    )


def specimens() -> list[common.Specimen]:
    shared = {"logits_ptr": "*fp32", "targets_ptr": "*i64"}
    loss = {**shared, "loss_ptr": "*fp32", "lse_ptr": "*fp32", "vocabulary": "i32"}
    grad = {**shared, "lse_ptr": "*fp32", "grad_ptr": "*fp32", "vocabulary": "i32", "scale": "fp32"}
    options = {"num_warps": 8}
    return [
        common.Specimen(loss_kernel, loss, {"ROWS": ROWS, "BLOCK": BLOCK}, options),
        common.Specimen(gradient_kernel, grad, {"BLOCK": TILE}, {"num_warps": 4}),
    ]


def numpy_loss(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    peak = logits.max(axis=1)
    lse = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
    return lse - logits[np.arange(len(targets)), targets], lse


def numpy_gradient(logits: np.ndarray, targets: np.ndarray, lse: np.ndarray) -> np.ndarray:
    grad = np.exp(logits - lse[:, None])
    grad[np.arange(len(targets)), targets] -= 1
    return grad / np.float32(len(targets))


def references(device: common.Device, logits: Any, targets: Any, lse: Any) -> Any:
    if not device.is_gpu:
        return lambda: numpy_loss(logits, targets), lambda: numpy_gradient(logits, targets, lse)
    import torch

    leaf = logits.clone().requires_grad_()
    mean = torch.nn.functional.cross_entropy(leaf, targets)
    return (
        lambda: torch.nn.functional.cross_entropy(logits, targets, reduction="none"),
        lambda: torch.autograd.grad(mean, leaf, retain_graph=True),
    )


def main(device: common.Device) -> list[common.Row]:
    rows, vocabulary = device.pick((48, VOCABULARY), (1024, VOCABULARY))
    logits = device.normal(rows, vocabulary, scale=2.0)
    targets = device.array(device.random.integers(0, vocabulary, rows))
    loss, lse, grad = device.empty(rows), device.empty(rows), device.empty(rows, vocabulary)
    cross_entropy(logits, targets, loss, lse)
    cross_entropy_gradient(logits, targets, lse, grad)

    checked = slice(0, 64)  # of the gradient; the loss is checked whole
    logits64 = device.numpy(logits[checked]).astype(np.float64)
    host_targets = device.numpy(targets)
    expected, lse64 = numpy_loss(logits64, host_targets[checked])
    loss_error = common.relative_error(device.numpy(loss[checked]), expected)
    expected = numpy_gradient(logits64, host_targets[checked], lse64) * len(lse64) / rows
    grad_error = common.relative_error(device.numpy(grad[checked]), expected)

    forward_reference, backward_reference = references(device, logits, targets, lse)
    shape, size = f"{rows}x{vocabulary} fp32", 4.0 * rows * vocabulary
    return [
        common.Row(
            "cross entropy forward", shape, loss_error, 1e-5, size, "GB/s",
            device.time(lambda: cross_entropy(logits, targets, loss, lse)),
            device.time(forward_reference),
        ),
        common.Row(
            "cross entropy backward", shape, grad_error, 1e-5, 2 * size, "GB/s",
            device.time(lambda: cross_entropy_gradient(logits, targets, lse, grad)),
            device.time(backward_reference),
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    common.run(main)
