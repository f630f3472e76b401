"""Names for type checkers: values bound to them in a kernel have the type Any.

`from tessera.language.kernel_typing import constexpr` under TYPE_CHECKING makes `constexpr` Any both as an annotation
and as a call, so that `B: tl.constexpr = 4`, `B + 1` and `LIMIT = tl.constexpr(4)` all pass.
"""

from typing import Any, TypeAlias

# `constexpr` as an annotation where the type checker is strict, which calls cannot be
constant: TypeAlias = Any  # noqa: PYI042


def __getattr__(name: str) -> Any:
    raise AttributeError(f"{name} is for type checkers only")
