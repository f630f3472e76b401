"""The language of kernels is what `import tessera.language as tl` offers.

Operations are stubs with signature and documentation; inside a function under `@tessera.jit` the front end gives them
their meaning. `tl.core`, `tl.math`, `tl.standard`, `tl.random` and `tl.extra` hold them by subject.

Docstrings name errors by their codes in docs/errors.md, each with code that raises it. An example's last line is an
expression, with its dtype, shape and elements below; docs/language/README.md says what its variables are: `x`, fp32,
and `n`, int32, are tiles of 8 elements, `i` is 0 to 7, `a` is an fp32 tile of shape [16, 16], capitals are pointers.
"""

from typing import TYPE_CHECKING

from tessera import dtypes
from tessera.dtypes import *
from tessera.language import (
    arithmetic,
    atomics,
    combine,
    core,
    creation,
    extra,
    hints,
    math,
    memory,
    random,
    standard,
    target_info,
    values,
)  # fmt: skip
from tessera.language.arithmetic import *
from tessera.language.atomics import *
from tessera.language.combine import *
from tessera.language.core import TRITON_MAX_TENSOR_NUMEL, aggregate_replace, str_to_ty
from tessera.language.creation import *
from tessera.language.descriptor import tensor_descriptor, tensor_descriptor_type
from tessera.language.hints import *
from tessera.language.memory import *
from tessera.language.random import *
from tessera.language.standard import *
from tessera.language.values import *

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.order import *  # mypy does not see through `standard`
    from tessera.language.reductions import *
else:
    from tessera.language.values import constexpr

__all__ = [
    "TRITON_MAX_TENSOR_NUMEL", "aggregate_replace", "constexpr", "core", "extra", "math", "random", "standard",
    "str_to_ty", "target_info", "tensor_descriptor", "tensor_descriptor_type",
]  # fmt: skip
__all__ += dtypes.__all__
__all__ += arithmetic.__all__
__all__ += atomics.__all__
__all__ += combine.__all__
__all__ += creation.__all__
__all__ += hints.__all__
__all__ += memory.__all__
__all__ += random.__all__
__all__ += standard.__all__
__all__ += values.__all__
