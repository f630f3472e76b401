"""Checks and times examples/06-flash-attention.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import attention_reference
import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    def signature(halves: tuple[str, ...], floats: tuple[str, ...], *numbers: str) -> Any:
        return {
            **dict.fromkeys(halves, "*fp16"),
            **dict.fromkeys(floats, "*fp32"),
            **{name: "i32" if name in ("heads", "length", "count") else "fp32" for name in numbers},
        }

    inputs = ("q_ptr", "k_ptr", "v_ptr")
    forward = signature((*inputs, "out_ptr"), ("lse_ptr",), "heads", "length", "scale")
    saved = ("lse_ptr", "delta_ptr")
    numbers = ("heads", "length", "scale", "log2_scale")
    keys = signature((*inputs, "dout_ptr", "dk_ptr", "dv_ptr"), saved, *numbers)
    queries = signature((*inputs, "dout_ptr", "dq_ptr"), saved, *numbers)
    delta = signature(("out_ptr", "dout_ptr"), ("delta_ptr",), "count")
    found = [common.Specimen(example.delta_kernel, delta, {"BLOCK_M": 64, "DIM": 64})]
    for causal in (False, True):
        tile = {"CAUSAL": causal, "BLOCK_M": 128, "BLOCK_N": 64, "DIM": 64}
        small = {**tile, "BLOCK_M": 64, "EVEN": True, "GROUP": 16}
        options = {"num_warps": 4, "num_stages": 2}
        whole = {**tile, "EVEN": True, "GROUP": 16}
        found.append(common.Specimen(example.forward_kernel, forward, whole))
        found.append(common.Specimen(example.key_gradient_kernel, keys, small, options))
        found.append(common.Specimen(example.query_gradient_kernel, queries, small, options))
    return found


def measure(device: common.Device, heads: int, length: int, dim: int, causal: bool) -> Any:
    dtype = device.pick("float32", "float16")
    q, k, v, dout = (device.normal(heads, length, dim, dtype=dtype) for _ in range(4))
    attention = example.Attention(device, heads, length, dim, causal)
    attention.forward(q, k, v)
    attention.backward(q, k, v, dout)

    checked = [0, heads - 1]  # NumPy would take minutes for all heads of a large problem
    q64, k64, v64, dout64 = (device.numpy(t[checked]).astype(np.float64) for t in (q, k, v, dout))
    forward_error = common.relative_error(
        device.numpy(attention.out[checked]),
        attention_reference.probabilities(q64, k64, causal) @ v64,
    )
    expected = attention_reference.gradients(q64, k64, v64, dout64, causal)
    backward_error = max(
        common.relative_error(device.numpy(found[checked]), wanted)
        for found, wanted in zip((attention.dq, attention.dk, attention.dv), expected)
    )
    forward_reference, backward_reference = attention_reference.calls(device, q, k, v, dout, causal)
    kind = "causal attention" if causal else "attention"
    shape = f"{heads}x{length}x{dim} {dtype}"
    work = 4.0 * heads * length * length * dim / (2 if causal else 1)
    tolerance = device.pick(1e-5, 4e-3)
    return [
        common.Row(
            f"{kind} forward", shape, forward_error, tolerance, work, "GFLOP/s",
            device.time(lambda: attention.forward(q, k, v)), device.time(forward_reference),
        ),
        common.Row(
            f"{kind} backward", shape, backward_error, tolerance, 2.5 * work, "GFLOP/s",
            device.time(lambda: attention.backward(q, k, v, dout)), device.time(backward_reference),
        ),
    ]  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    heads, length = device.pick((4, 500), (64, 4096))
    return measure(device, heads, length, 64, False) + measure(device, heads, length, 64, True)
