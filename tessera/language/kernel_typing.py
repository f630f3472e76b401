"""Names as type checkers see them: what is bound to them in a kernel is computed with as Any.

`from tessera.language.kernel_typing import constexpr` under TYPE_CHECKING makes `constexpr` Any both as an annotation
and as a call, so that `B: tl.constexpr = 4`, `B + 1` and `LIMIT = tl.constexpr(4)` all pass.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    raise AttributeError(f"{name} is for type checkers only")
