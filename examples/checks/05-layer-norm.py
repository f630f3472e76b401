"""Checks and times examples/05-layer-norm.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    def pointers(*names: str) -> dict[str, str]:
        return dict.fromkeys(names, "*fp32")

    forward = pointers("x_ptr", "w_ptr", "b_ptr", "y_ptr", "mean_ptr", "rstd_ptr")
    backward = pointers(
        "dy_ptr", "x_ptr", "w_ptr", "mean_ptr", "rstd_ptr", "dx_ptr", "dw_ptr", "db_ptr"
    )
    merge = pointers("dw_parts_ptr", "db_parts_ptr", "dw_ptr", "db_ptr")
    grouped = {"GROUPS": example.GROUPS, "BLOCK": 1024}
    return [
        common.Specimen(
            example.forward_kernel, {**forward, "cols": "i32", "eps": "fp32"}, {"BLOCK": 1024}
        ),
        common.Specimen(
            example.backward_kernel,
            {**backward, "locks_ptr": "*i32", "rows": "i32", "cols": "i32"},
            grouped,
        ),
        common.Specimen(example.merge_kernel, {**merge, "cols": "i32"}, {**grouped, "BLOCK": 64}),
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


def references(device: common.Device, norm: Any, x: Any, w: Any, b: Any, dy: Any) -> Any:
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
    norm = example.LayerNorm(device, rows, cols)
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
