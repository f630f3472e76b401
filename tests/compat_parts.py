"""Parts of `tessera.compat`, imported without its effect: `import triton` does not come to mean tessera for the other
tests of this process, which torch would do for them."""

from __future__ import annotations

import os
import sys

_paths, _finders, _inherited = [*sys.path], [*sys.meta_path], os.environ.get("PYTHONPATH")

from tessera.compat.absent import REASONS, explain  # noqa: E402  between what is kept and what is put back
from tessera.compat.binaries import folder_name, options_for_inductor  # noqa: E402
from tessera.compat.install import install  # noqa: E402

sys.path[:], sys.meta_path[:] = _paths, _finders
if _inherited is None:
    del os.environ["PYTHONPATH"]
else:
    os.environ["PYTHONPATH"] = _inherited

__all__ = ["REASONS", "explain", "folder_name", "install", "options_for_inductor"]
