"""Tells type checkers and editors the operators and methods of tiles and descriptors. The front end computes operators
and finds methods by `values.METHODS`; nothing imports this module when a program runs."""

from __future__ import annotations

from typing import Any

from tessera.language import arithmetic, atomics, combine, creation, memory, order, reductions
from tessera.language.values import tensor


class TensorMethods:
    """The base class of `tensor` for type checkers. Methods are the operations, whose first argument is the tile."""

    def _operator(self, other: Any = None) -> tensor: ...

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = _operator
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = _operator
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __neg__ = __pos__ = _operator
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __invert__ = _operator
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _operator

    def __eq__(self, other: object) -> Any: ...
    def __ne__(self, other: object) -> Any: ...
    def __hash__(self) -> int: ...
    def __index__(self) -> int: ...  # as a bound of `range`
    @property
    def T(self) -> tensor: ...

    abs = arithmetic.abs
    ceil = arithmetic.ceil
    cos = arithmetic.cos
    erf = arithmetic.erf
    exp = arithmetic.exp
    exp2 = arithmetic.exp2
    floor = arithmetic.floor
    log = arithmetic.log
    log2 = arithmetic.log2
    logical_and = arithmetic.logical_and
    logical_or = arithmetic.logical_or
    rsqrt = arithmetic.rsqrt
    sin = arithmetic.sin
    sqrt = arithmetic.sqrt
    sqrt_rn = arithmetic.sqrt_rn
    associative_scan = combine.associative_scan
    gather = combine.gather
    histogram = combine.histogram
    reduce = combine.reduce
    broadcast_to = creation.broadcast_to
    cast = creation.cast
    expand_dims = creation.expand_dims
    item = creation.item
    permute = creation.permute
    ravel = creation.ravel
    reshape = creation.reshape
    split = creation.split
    trans = creation.trans
    view = creation.view
    atomic_add = atomics.atomic_add
    atomic_and = atomics.atomic_and
    atomic_cas = atomics.atomic_cas
    atomic_max = atomics.atomic_max
    atomic_min = atomics.atomic_min
    atomic_or = atomics.atomic_or
    atomic_xchg = atomics.atomic_xchg
    atomic_xor = atomics.atomic_xor
    advance = memory.advance
    store = memory.store
    argmax = reductions.argmax
    argmin = reductions.argmin
    cdiv = reductions.cdiv
    cumprod = reductions.cumprod
    cumsum = reductions.cumsum
    max = reductions.max
    min = reductions.min
    reduce_or = reductions.reduce_or
    sigmoid = reductions.sigmoid
    softmax = reductions.softmax
    sum = reductions.sum
    xor_sum = reductions.xor_sum
    flip = order.flip
    sort = order.sort
    to = creation.cast


class DescriptorMethods:
    """The base class of `tensor_descriptor` for type checkers."""

    load = memory.load_tensor_descriptor
    store = memory.store_tensor_descriptor
    gather = memory.descriptor_gather
    scatter = memory.descriptor_scatter
    atomic_add = memory.descriptor_atomic_add
    atomic_min = memory.descriptor_atomic_min
    atomic_max = memory.descriptor_atomic_max
    atomic_and = memory.descriptor_atomic_and
    atomic_or = memory.descriptor_atomic_or
    atomic_xor = memory.descriptor_atomic_xor
