"""Provides `get_sass`, which disassembles a cubin."""

from __future__ import annotations

import re
from pathlib import Path

from tessera.backends.nvidia.ptxas import disassemble

HEADER = re.compile(r"^.*(?:-+ \.text\.|Function : )(\S+).*$", re.M)


def get_sass(cubin: bytes, fun: str | None = None) -> str:
    """Return the SASS of all functions of `cubin`, or of the one named `fun`. Raises ValueError if it is missing."""
    text = disassemble(cubin)
    if fun is None:
        return text
    heads = list(HEADER.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if head[1] == fun:
            return text[head.start() : None if following is None else following.start()]
    raise ValueError(f"no function {fun} in the cubin; there are: {', '.join(h[1] for h in heads)}")


def extract(file_path: str, fun: str | None = None) -> str:
    """Return `get_sass` of a file."""
    return get_sass(Path(file_path).read_bytes(), fun)


__all__ = ["extract", "get_sass"]
