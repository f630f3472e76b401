"""Names what operations of the language take, for the signatures of their stubs.

Only type checkers import this module. A kernel may pass anything at compile time: the front end checks it and reports
what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tessera.dtypes import dtype, pointer_type
from tessera.language.block_pointer import block_pointer
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable
from tessera.language.values import constexpr, tensor
from tessera.language.values import tuple as tl_tuple

BoolLike: TypeAlias = constexpr | bool  # known at compile time, as all but tensors
IntLike: TypeAlias = constexpr | int
StrLike: TypeAlias = constexpr | str
DTypeLike: TypeAlias = dtype | pointer_type | constexpr
TensorLike: TypeAlias = tensor | constexpr | bool | int | float  # a number has no dtype of its own
Index: TypeAlias = tensor | constexpr | int  # a scalar
Indices: TypeAlias = Sequence[Index] | tl_tuple
Ints: TypeAlias = IntLike | Sequence[IntLike] | tl_tuple  # one int stands for a sequence of one
PointerLike: TypeAlias = tensor | block_pointer
Tensors: TypeAlias = tensor | Sequence[tensor] | tl_tuple
Mask: TypeAlias = TensorLike | None
Option: TypeAlias = StrLike | None
# A tensor or a number, of functions written in the language, whose text is checked, too.
Operand: TypeAlias = Any
# A tensor, or a tuple of tensors where the input or an argument asks for it.
Combined: TypeAlias = Any
CombineFunction: TypeAlias = (
    JITCallable | Builtin | Callable[..., Any]
)  # of scalars: two for each input
