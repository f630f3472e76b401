# pyright: basic, reportMissingImports=false
"""The rows of `cpu.py` written for numba: loops over rows that its compiler spreads over threads and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

parallel = numba.njit(parallel=True, fastmath=True)
ONE = np.float32(1.0)
HALF = np.float32(0.5)


@parallel
def add(x, y, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + y[i]


@parallel
def copy(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i]


@parallel
def softmax(x, out):
    for row in numba.prange(x.shape[0]):
        peak = x[row, 0]
        for i in range(x.shape[1]):
            peak = max(peak, x[row, i])
        total = np.float32(0.0)
        for i in range(x.shape[1]):
            power = math.exp(x[row, i] - peak)
            out[row, i] = power
            total += power
        scale = ONE / total
        for i in range(x.shape[1]):
            out[row, i] *= scale


@parallel
def layer_norm(x, w, b, out):
    count = np.float32(x.shape[1])
    for row in numba.prange(x.shape[0]):
        total = np.float32(0.0)
        for i in range(x.shape[1]):
            total += x[row, i]
        mean = total / count
        squares = np.float32(0.0)
        for i in range(x.shape[1]):
            squares += (x[row, i] - mean) * (x[row, i] - mean)
        scale = ONE / math.sqrt(squares / count + np.float32(1e-5))
        for i in range(x.shape[1]):
            out[row, i] = (x[row, i] - mean) * scale * w[i] + b[i]


@parallel
def rms_norm(x, w, out):
    count = np.float32(x.shape[1])
    for row in numba.prange(x.shape[0]):
        squares = np.float32(0.0)
        for i in range(x.shape[1]):
            squares += x[row, i] * x[row, i]
        scale = ONE / math.sqrt(squares / count + np.float32(1e-6))
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * scale * w[i]


@parallel
def gelu_erf(x, bias, out):
    for row in numba.prange(x.shape[0]):
        for i in range(x.shape[1]):
            v = x[row, i] + bias[i]
            out[row, i] = HALF * v * (ONE + math.erf(v * np.float32(0.70710678)))


@parallel
def gelu_tanh(x, bias, out):
    for row in numba.prange(x.shape[0]):
        for i in range(x.shape[1]):
            v = x[row, i] + bias[i]
            inner = np.float32(0.79788456) * (v + np.float32(0.044715) * v * v * v)
            out[row, i] = HALF * v * (ONE + math.tanh(inner))


@parallel
def cross_entropy(x, targets, loss):
    for row in numba.prange(x.shape[0]):
        peak = x[row, 0]
        for i in range(x.shape[1]):
            peak = max(peak, x[row, i])
        total = np.float32(0.0)
        for i in range(x.shape[1]):
            total += math.exp(x[row, i] - peak)
        loss[row] = math.log(total) + peak - x[row, targets[row]]


def call(name: str, *tensors: Any) -> Callable[[], Any]:
    """A call of the function `name` on the memory of torch's tensors, the last of which is the result."""
    function, arrays = globals()[name], [t.numpy() for t in tensors]
    return lambda: function(*arrays)
