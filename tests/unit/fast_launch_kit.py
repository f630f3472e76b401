"""Arguments of native launches, and what reads them."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import ctypes
from typing import Any

import tessera.language as tl

READER = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)


class Tensor:
    """What torch's tensors look like from outside."""

    def __init__(
        self, address: int, dtype: Any = tl.float32, cuda: bool = True, nbytes: int = 64
    ) -> None:
        self.address, self.dtype, self.is_cuda, self.nbytes = address, dtype, cuda, nbytes


READERS = [
    READER(lambda t, _: t.address), READER(lambda t, _: t.dtype), READER(lambda t, _: t.is_cuda),
    READER(lambda t, _: t), READER(lambda t, _: t.nbytes),
]  # fmt: skip
