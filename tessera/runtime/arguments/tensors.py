"""Provides placeholders and typed views for kernel arguments, over any array library."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from tessera import dtypes
from tessera.errors import SpecializationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def numpy() -> Any:
    """Return NumPy, imported at first use because its import takes longer than that of tessera."""
    return importlib.import_module("numpy")


def is_numpy(array: object) -> TypeGuard[NDArray[Any]]:
    """Whether `array` is a NumPy array; does not import NumPy."""
    module = sys.modules.get("numpy")
    return module is not None and isinstance(array, module.ndarray)


def element_type(dtype: object) -> dtypes.dtype | None:
    """Return our dtype for a dtype of NumPy, torch, jax or tessera; None if we have no such element type."""
    if isinstance(dtype, dtypes.dtype):
        return dtype
    # NumPy's dtypes go by the classes of their scalars, too: np.float32
    return dtypes.by_array_name(dtype.__name__ if isinstance(dtype, type) else str(dtype))


def address_of(array: Any) -> int:
    """Return the address of element 0. TypeError if `array` is not an array."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if is_numpy(array):
        return array.ctypes.data
    for protocol in ("__cuda_array_interface__", "__array_interface__"):
        if hasattr(array, protocol):
            return getattr(array, protocol)["data"][0]
    raise TypeError(f"an object of type {type(array).__name__} has no address (no data_ptr())")


def strides_of(array: Any) -> tuple[int, ...]:
    """Return the strides in elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    size = array.dtype.itemsize
    return tuple(s // size for s in array.strides)


def itemsize_of(dtype: Any) -> int:
    kind = element_type(dtype)
    return kind.storage_bytes if kind is not None else int(dtype.itemsize)


class MockTensor:
    """Stands for a tensor of `dtype` where only its type matters: compiling without data (`kernel.warmup`).

    It looks 16-byte aligned, contiguous and small. `shape` defaults to [1].

    Example:
        >>> double.warmup(tessera.MockTensor(tl.float16), 5, BLOCK=8, grid=(1,))
        <CompiledKernel double for cpu:native>
    """

    def __init__(self, dtype: Any, shape: list[int] | tuple[int, ...] | None = None) -> None:
        self.dtype = dtype
        self.shape = [1] if shape is None else list(shape)

    @staticmethod
    def wrap_dtype(arg: object) -> Any:
        """Return a MockTensor of that type for a torch.dtype; anything else stays as it is."""
        given: object = arg
        kind = type(given)
        if kind.__name__ == "dtype" and kind.__module__ == "torch":
            return MockTensor(arg)
        return arg

    def stride(self, dim: int | None = None) -> Any:
        strides = [1]
        for size in self.shape[:0:-1]:
            strides.append(strides[-1] * size)
        strides.reverse()
        return tuple(strides) if dim is None else strides[dim]

    def element_size(self) -> int:
        return itemsize_of(self.dtype)

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


class TensorWrapper:
    """The memory of `base` read as elements of `dtype`; nothing is converted. `reinterpret` makes it.

    This is how bf16 and fp8 reach a kernel from NumPy, which has no such types: the bits are in a uint16 or uint8
    array. `shape` and strides are those of `base`.

    Example:
        >>> bits = np.array([0x3F80, 0x4000], np.uint16)  # 1.0 and 2.0 in bf16
        >>> _ = double[(1,)](tessera.TensorWrapper(bits, tl.bfloat16), 2, BLOCK=2)
        >>> [hex(b) for b in bits]
        ['0x4000', '0x4080']
    """

    def __init__(self, base: Any, dtype: Any) -> None:
        self.dtype = dtype
        self.base = base
        self.shape = base.shape
        self.device = getattr(base, "device", "cpu")

    @property
    def data(self) -> Any:
        return self.base if is_numpy(self.base) else self.base.data

    @data.setter
    def data(self, value: Any) -> None:
        """Use the memory of `value`, an array or another view; the element type stays."""
        self.base = value.base if isinstance(value, TensorWrapper) else value
        self.shape = self.base.shape
        self.device = getattr(self.base, "device", "cpu")

    def data_ptr(self) -> int:
        return address_of(self.base)

    def stride(self, *args: int) -> Any:
        strides = strides_of(self.base)
        return strides[args[0]] if args else strides

    def element_size(self) -> int:
        return itemsize_of(self.dtype)

    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    def __str__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"

    __repr__ = __str__

    def cpu(self) -> TensorWrapper:
        return TensorWrapper(_same(self.base, "cpu"), self.dtype)

    def to(self, device: object) -> TensorWrapper:
        return TensorWrapper(_same(self.base, "to", device), self.dtype)

    def copy_(self, other: object) -> None:
        copy_into(self.base, getattr(other, "base", other))

    def zero_(self) -> TensorWrapper:
        fill_zero(self.base)
        return self

    def clone(self) -> TensorWrapper:
        return TensorWrapper(clone(self.base), self.dtype)

    def new_empty(self, sizes: Any) -> TensorWrapper:
        if is_numpy(self.base):
            return TensorWrapper(numpy().empty(sizes, self.base.dtype), self.dtype)
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)


def _same(array: object, method: str, *args: object) -> Any:
    """Return `array.method(*args)`; a NumPy array is on the host already and is returned as it is."""
    return array if is_numpy(array) else getattr(array, method)(*args)


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """Return the memory of `tensor` as elements of `dtype`, of equal size; `tensor` itself if it has that type.

    It raises TypeError for anything but an array.

    Example:
        >>> tessera.reinterpret(np.zeros(4, np.uint16), tl.bfloat16)
        TensorWrapper[bf16]([0 0 0 0])
        >>> tessera.reinterpret(3, tl.bfloat16)
        Traceback (most recent call last):
        tessera.errors.SpecializationError: error[argument-type]: Cannot reinterpret a <class 'int'>...
    """
    if isinstance(tensor, TensorWrapper):
        same = element_type(dtype) is element_type(tensor.base.dtype)
        return tensor.base if same else TensorWrapper(tensor.base, dtype)
    if hasattr(tensor, "data_ptr") or is_numpy(tensor):
        return TensorWrapper(tensor, dtype)
    if hasattr(tensor, "__cuda_array_interface__"):
        return TensorWrapper(tensor, dtype)
    raise SpecializationError(
        f"Cannot reinterpret a {type(tensor)}.", help="give an array, as `np.asarray(x)`"
    )


# --- what tuning and timing need from an array of any library --------------------------------------------


def fill_zero(array: Any) -> None:
    if hasattr(array, "zero_"):
        array.zero_()
    else:
        array[...] = 0


def clone(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def copy_into(target: Any, source: Any) -> None:
    if hasattr(target, "copy_"):
        target.copy_(source)
    else:
        target[...] = source


def to_numpy(x: Any) -> Any:
    """Return the values as a NumPy array on the host; bf16 becomes float32 (exactly), fp8 needs torch."""
    if isinstance(x, TensorWrapper):
        if element_type(x.dtype) is dtypes.bfloat16:
            np = numpy()
            bits = np.asarray(to_numpy(x.base)).view(np.uint16)
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if element_type(x.dtype) in dtypes.FP8:
            raise TypeError(
                "fp8 values have no NumPy type: use torch, or decode the bits in `.base`"
            )
        return numpy().asarray(to_numpy(x.base)).view(str(x.dtype).rsplit(".", 1)[-1])
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        kind = element_type(x.dtype)
        if kind is dtypes.bfloat16 or kind in dtypes.FP8:
            x = x.float()
        return x.numpy()
    if hasattr(x, "get") and hasattr(x, "__cuda_array_interface__"):
        return x.get()
    return numpy().asarray(x)


# How far the results of two correct kernels may differ, relative to the largest magnitude: sums may be reordered.
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-3, "fp16": 1e-2, "bf16": 3e-2}
FP8_TOLERANCE = 0.25  # one step of e5m2, which has two bits of mantissa


def agree(x: Any, y: Any) -> bool:
    """Whether two arrays of one type hold the same results up to rounding; NaN equals NaN. Integers must be equal."""
    kind = element_type(x.dtype)
    if isinstance(x, TensorWrapper):
        x, y = to_numpy(x), to_numpy(y)
    if is_numpy(x):
        x, y = numpy().asarray(x), numpy().asarray(y)
    if kind is None or not kind.is_floating():
        return bool((x == y).all())
    if not is_numpy(x):
        return _agree_tensors(
            x.detach().float(), y.detach().float(), TOLERANCE.get(kind.short, FP8_TOLERANCE)
        )
    finite = y[numpy().isfinite(y)]
    limit = TOLERANCE.get(kind.short, FP8_TOLERANCE) * float(abs(finite).max(initial=0.0))
    return bool(numpy().allclose(x, y, rtol=0, atol=limit, equal_nan=True))


def _agree_tensors(x: Any, y: Any, tolerance: float) -> bool:
    if x.numel() == 0:
        return True
    limit = tolerance * y.nan_to_num(0.0, 0.0, 0.0).abs().max()
    near = ((x - y).abs() <= limit) | (x == y) | (x.isnan() & y.isnan())
    return bool(near.all())


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays hold the same values, with NaNs at the same places."""
    if isinstance(x, TensorWrapper):
        return same_bits(x.base, y.base)
    return bool(((x == y) | ((x != x) & (y != y))).all())
