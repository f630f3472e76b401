"""Checks and times examples/12-attention-descriptors.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import attention_reference
import numpy as np

import common

example = common.example(__file__)


def backward_specimen(dim: int, causal: bool, config: Any) -> common.Specimen:
    block_m, block_n, warps, stages = config
    blocks = {
        **dict.fromkeys(("q_desc", "dout_desc"), f"fp16[1, {block_m}, {dim}]"),
        **dict.fromkeys(("k_desc", "v_desc", "dk_desc", "dv_desc"), f"fp16[1, {block_n}, {dim}]"),
        **dict.fromkeys(("lse_desc", "delta_desc"), f"fp32[1, {block_m}]"),
        "sum_desc": f"fp32[1, {block_m}, {dim}]",
    }
    signature = {
        **{name: f"tensordesc<{block}>" for name, block in blocks.items()},
        **dict.fromkeys(("heads", "length"), "i32"), **dict.fromkeys(("scale", "log2_scale"), "fp32"),
    }  # fmt: skip
    tile = {
        "CAUSAL": causal, "EVEN": True, "BLOCK_M": block_m, "BLOCK_N": block_n, "DIM": dim, "GROUP": 8,
    }  # fmt: skip
    options = {"num_warps": warps, "num_stages": stages}
    return common.Specimen(example.backward_kernel, signature, tile, options, (90,))


def specimens() -> list[common.Specimen]:
    found = [
        backward_specimen(64, False, example.BACKWARD[0][0]),
        backward_specimen(64, True, example.BACKWARD[0][1]),
        backward_specimen(128, False, example.BACKWARD[1][0]),
        backward_specimen(128, True, example.BACKWARD[1][0]),
    ]
    for dim, configs in ((64, example.CONFIGS[0][:2]), (128, example.CONFIGS[1][:1])):
        for causal in (False, True):
            for block_m, block_n, warps, stages in configs:
                rows = {
                    "q_desc": block_m,
                    "k_desc": block_n,
                    "v_desc": block_n,
                    "out_desc": block_m,
                }
                signature = {
                    **{name: f"tensordesc<fp16[1, {n}, {dim}]>" for name, n in rows.items()},
                    "lse_ptr": "*fp32", "heads": "i32", "length": "i32", "scale": "fp32",
                }  # fmt: skip
                tile = {
                    "CAUSAL": causal, "EVEN": True, "BLOCK_M": block_m, "BLOCK_N": block_n, "DIM": dim, "GROUP": 8,
                }  # fmt: skip
                options = {"num_warps": warps, "num_stages": stages}
                found.append(
                    common.Specimen(example.forward_kernel, signature, tile, options, (90,))
                )
    return found


def measure(
    device: common.Device, heads: int, length: int, dim: int, causal: bool
) -> list[common.Row]:
    dtype = device.pick("float32", "float16")
    arrays = [device.normal(heads, length, dim, dtype=dtype) for _ in range(4)]
    q, k, v, dout = arrays
    attention = example.Attention(device, heads, length, dim, causal)
    attention.forward(q, k, v)
    attention.backward(q, k, v, dout)
    checked = [0, heads - 1]  # NumPy would take minutes for all heads of a large problem
    q64, k64, v64, dout64 = (device.numpy(x[checked]).astype(np.float64) for x in arrays)
    found = [device.numpy(x[checked]) for x in (attention.dq, attention.dk, attention.dv)]
    out = attention_reference.probabilities(q64, k64, causal) @ v64
    gradients = attention_reference.gradients(q64, k64, v64, dout64, causal)
    errors = [
        common.relative_error(device.numpy(attention.out[checked]), out),
        max(map(common.relative_error, found, gradients)),
    ]
    calls = [
        lambda: attention.forward(q, k, v),
        lambda: attention.backward(q, k, v, dout),
    ]
    work = 4.0 * heads * length * length * dim / (2 if causal else 1)
    name = f"{'causal attention' if causal else 'attention'} with descriptors"
    return [
        common.Row(
            name + what, f"{heads}x{length}x{dim} {dtype}", error, device.pick(1e-5, 2e-3), work * products,
            "GFLOP/s", device.time(call), device.time(reference),
        )
        for what, error, products, call, reference in zip(
            ("", ", backward"), errors, (1.0, 2.5), calls, attention_reference.calls(device, q, k, v, dout, causal)
        )
    ]  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    heads, length = device.pick((3, 300), (64, 4096))
    sizes = [(length, 64), (length - 56, device.pick(64, 128))]
    return [
        row
        for n, dim in sizes
        for causal in (False, True)
        for row in measure(device, heads, n, dim, causal)
    ]
