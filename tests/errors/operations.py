"""Mistakes in calls of operations, and the full text of each error."""

# ruff: noqa: E501  messages stand as they are printed
from __future__ import annotations

TEXTS = {
    "t & 2.5": """
        error[type-mismatch]: invalid operands of type tessera.language.float32 and tessera.language.float32
          --> kernel.py:8:9 in k (at 4:8:)
           |
         8 |     x = t & 2.5
           |         ^^^^^^^
          = help: this takes integers: cast with `.to(...)`, or compare first
        """,
    "t + tl.arange(0, 32)": """
        error[shape-mismatch]: Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32
          --> kernel.py:8:9 in k (at 4:8:)
           |
         8 |     x = t + tl.arange(0, 32)
           |         ^^^^^^^^^^^^^^^^^^^^
          = help: the shapes are [16] and [32]: extents must be equal or 1
        """,
    "tl.dot(t[:, None], t[:, None])": """
        error[shape-mismatch]: input and other must have equal reduction dimensions, got [16, 1] and [16, 1]
          --> kernel.py:8:9 in k (at 4:8:)
           |
         8 |     x = tl.dot(t[:, None], t[:, None])
           |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          = help: dot multiplies [M, K] by [K, N]; transpose an operand with tl.trans if it lies the other way
        """,
    'tl.load(p + i, eviction_policy="later")': """
        error[invalid-argument]: invalid argument "eviction_policy" of load(): 'later' is not one of ('', 'evict_first', 'evict_last', 'evict_normal')
          --> kernel.py:8:40 in k (at 4:39:)
           |
         8 |     x = tl.load(p + i, eviction_policy="later")
           |                                        ^^^^^^^
          = help: give one of '', 'evict_first', 'evict_last', 'evict_normal'
        """,
}
