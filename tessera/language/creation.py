"""The program model, tile creation and shape manipulation: `program_id`, `arange`, `reshape`, `trans`, …"""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin


# --- program model ------------------------------------------------------------------------------------
@builtin
def program_id(axis: Any) -> Any:
    """Index of this program instance along grid axis 0, 1 or 2, as an int32 scalar.

    Raises InvalidArgument for another axis.
    """


@builtin
def num_programs(axis: Any) -> Any:
    """Extent of the launch grid along axis 0, 1 or 2, as an int32 scalar."""


# --- creation -----------------------------------------------------------------------------------------
@builtin
def arange(start: Any, end: Any) -> Any:
    """The int32 tile `[start, start + 1, …, end - 1]`.

    Both bounds are compile-time ints in int32's range; `end - start` is a power of two, `start` is free.
    """


@builtin
def full(shape: Any, value: Any, dtype: Any) -> Any:
    """A tile of `shape` (compile-time ints) filled with `value`, a number or a one-element tensor, cast to `dtype`.

    An empty shape gives a scalar.
    """


@builtin
def zeros(shape: Any, dtype: Any) -> Any:
    """A tile of `shape` filled with 0 of `dtype`."""


@builtin
def zeros_like(input: Any) -> Any:
    """Zeros in the shape and dtype of `input`."""


@builtin
def to_tensor(x: Any) -> Any:
    """`x` as a tensor: numbers become scalars of their default dtype, tensors stay."""


@builtin
def cat(input: Any, other: Any, can_reorder: Any = False, dim: Any = 0) -> Any:
    """Two tiles of one shape, one after the other along `dim`. With `can_reorder` (1-D) the order is free."""


# --- shape --------------------------------------------------------------------------------------------
@builtin
def reshape(input: Any, *shape: Any, can_reorder: Any = False) -> Any:
    """The same elements, row-major, under another shape (given as ints or one tuple) of equal element count.

    `()` turns a one-element tile into a scalar. Raises ShapeMismatch when the count changes.
    """


@builtin
def view(input: Any, *shape: Any) -> Any:
    """Deprecated `reshape` that may reorder elements."""


@builtin
def ravel(x: Any, can_reorder: Any = False) -> Any:
    """All elements of `x` as one dimension, in row-major order."""


@builtin
def expand_dims(input: Any, axis: Any) -> Any:
    """Insert dimensions of extent 1 at `axis` (an int or a tuple, counted in the result; negative from the end)."""


@builtin
def squeeze(x: Any, dim: Any) -> Any:
    """Drop dimension `dim`, whose extent must be 1."""


@builtin
def unsqueeze(x: Any, dim: Any) -> Any:
    """Insert a dimension of extent 1 before dimension `dim` of the result."""


@builtin
def broadcast(input: Any, other: Any) -> Any:
    """Both operands in their common shape, as a tuple of two."""


@builtin
def broadcast_to(input: Any, *shape: Any) -> Any:
    """`input` repeated along its dimensions of extent 1 to `shape`, which has the same rank."""


@builtin
def trans(input: Any, *dims: Any) -> Any:
    """Permute dimensions by `dims`; without any, swap the last two."""


@builtin
def permute(input: Any, *dims: Any) -> Any:
    """Permute dimensions: result dimension i is `input` dimension `dims[i]`."""


@builtin
def join(a: Any, b: Any) -> Any:
    """Stack two tensors of one dtype along a new last dimension of extent 2; they broadcast first."""


@builtin
def split(a: Any) -> Any:
    """The two slices along a last dimension of extent 2, as a tuple; a tile of shape (2,) gives two scalars."""


@builtin
def interleave(a: Any, b: Any) -> Any:
    """Elements of `a` and `b` in turn along the last dimension: a[0], b[0], a[1], b[1], …"""


@builtin
def item(x: Any) -> Any:
    """The one element of a one-element tile, as a scalar."""


@builtin
def cast(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> Any:
    """`input` converted to `dtype` by value, or with `bitcast` the same bits under a dtype of equal width.

    Floats to ints truncate, anything to int1 tests `!= 0`, ints wrap. `fp_downcast_rounding` ("rtne", the default,
    or "rtz") may be given for narrowing float conversions only. Method `x.to(dtype)`.
    """
