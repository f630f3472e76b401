"""Names AMD GPUs' functions (`tl.extra.hip`). No back end has them: a kernel that uses one does not compile."""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin


@builtin
def memrealtime() -> Any:
    """A clock of AMD GPUs. Not supported: raises."""


@builtin
def smid() -> Any:
    """Number of the compute unit. Not supported: raises; on NVIDIA use `extra.cuda.smid`."""


@builtin
def num_threads() -> Any:
    """Threads of this program. Not supported: raises; on NVIDIA use `extra.cuda.num_threads`."""


@builtin
def num_warps() -> Any:
    """Wavefronts of this program. Not supported: raises; on NVIDIA use `extra.cuda.num_warps`."""


__all__ = ["memrealtime", "num_threads", "num_warps", "smid"]
