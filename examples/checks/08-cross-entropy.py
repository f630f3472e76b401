"""Checks and times examples/08-cross-entropy.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    shared = {"logits_ptr": "*fp32", "targets_ptr": "*i64"}
    loss = {**shared, "loss_ptr": "*fp32", "lse_ptr": "*fp32", "vocabulary": "i32"}
    grad = {**shared, "lse_ptr": "*fp32", "grad_ptr": "*fp32", "vocabulary": "i32", "scale": "fp32"}
    options = {"num_warps": 8}
    return [
        common.Specimen(
            example.loss_kernel, loss, {"ROWS": example.ROWS, "BLOCK": example.BLOCK}, options
        ),
        common.Specimen(example.gradient_kernel, grad, {"BLOCK": example.TILE}, {"num_warps": 4}),
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
    rows, vocabulary = device.pick((48, example.VOCABULARY), (1024, example.VOCABULARY))
    logits = device.normal(rows, vocabulary, scale=2.0)
    targets = device.array(device.random.integers(0, vocabulary, rows))
    loss, lse, grad = device.empty(rows), device.empty(rows), device.empty(rows, vocabulary)
    example.cross_entropy(logits, targets, loss, lse)
    example.cross_entropy_gradient(logits, targets, lse, grad)

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
            device.time(lambda: example.cross_entropy(logits, targets, loss, lse)),
            device.time(forward_reference),
        ),
        common.Row(
            "cross entropy backward", shape, grad_error, 1e-5, 2 * size, "GB/s",
            device.time(lambda: example.cross_entropy_gradient(logits, targets, lse, grad)),
            device.time(backward_reference),
        ),
    ]  # fmt: skip
