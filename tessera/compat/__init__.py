"""`import tessera.compat` makes `import triton` mean tessera, in this process and in those that it starts.

The folder `path/` next to this file holds a package named `triton` whose modules export tessera's objects. It
becomes the first place where Python looks for modules (`sys.path`), and child processes, too (`PYTHONPATH`). An
installed Triton stays unchanged; one that is already imported cannot be replaced and is an error.
"""

from tessera.compat.install import PATH, TRITON_VERSION, install, is_ours

__all__ = ["PATH", "TRITON_VERSION", "install", "is_ours"]

install()
