"""Makes `constexpr` Any to type checkers, as an annotation and as a call.

So `B: tl.constexpr = 4`, `B + 1` and `LIMIT = tl.constexpr(4)` all pass, and a launch may give B any value. An explicit
alias of Any cannot be called, and a variable is no type; a name that is bound to an attribute of the type Any is both.
"""

from typing import Any


class _Types:
    constant: Any


constexpr = _Types.constant
