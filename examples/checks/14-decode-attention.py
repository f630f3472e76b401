"""Checks and times examples/14-decode-attention.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    partial = {
        **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*fp16"), "out_ptr": "*fp32", "lse_ptr": "*fp32",
        **dict.fromkeys(("length", "part", "splits"), "i32"), "scale": "fp32",
    }  # fmt: skip
    combine = {"parts_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": "*fp16", "splits": "i32"}
    found = [common.Specimen(example.combine_kernel, combine, {"SPLITS": 16, "DIM": 128})]
    for group in (1, 8):
        constants = {"G": group, "BLOCK_G": 16, "BLOCK_N": 64, "DIM": 128}
        found.append(common.Specimen(example.partial_kernel, partial, constants))
    return found


def numpy_decoding(q: np.ndarray, k: np.ndarray, v: np.ndarray, group: int) -> np.ndarray:
    heads, _, dim = k.shape
    scores = q.reshape(heads, group, dim) @ k.swapaxes(1, 2) * dim**-0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).reshape(heads * group, dim)


def measure(device: common.Device, heads: int, group: int, length: int, dim: int) -> common.Row:
    dtype = device.pick("float32", "float16")
    q = device.normal(heads * group, dim, dtype=dtype)
    k, v = (device.normal(heads, length, dim, dtype=dtype) for _ in range(2))
    decoding = example.Decoding(device, heads, group, length, dim)
    decoding.run(q, k, v)
    q64, k64, v64 = (device.numpy(t).astype(np.float64) for t in (q, k, v))
    expected = numpy_decoding(q64, k64, v64, group)
    error = common.relative_error(device.numpy(decoding.out), expected)

    def reference() -> Any:
        if not device.is_gpu:
            return numpy_decoding(q, k, v, group)
        import torch

        heads_of_queries = q.view(heads, group, dim)
        return torch.nn.functional.scaled_dot_product_attention(heads_of_queries, k, v)

    return common.Row(
        "decode attention", f"{heads}x{group} of {length}x{dim} {dtype}", error,
        device.pick(1e-5, 2e-3), float(k.nbytes + v.nbytes), "GB/s",
        device.time(lambda: decoding.run(q, k, v)), device.time(reference),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    long, short = device.pick((4096, 700), (32768, 5000))
    return [measure(device, 8, 4, long, 128), measure(device, 32, 1, short, 64)]
