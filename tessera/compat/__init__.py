"""`import tessera.compat` makes `import triton` mean tessera, in this process and in those that it starts.

The folder `path/` beside this file holds a package named `triton` whose modules hand out tessera's objects. It
becomes the first place where Python looks for modules (`sys.path`) and where child processes do (`PYTHONPATH`). A
Triton that is installed stays as it is; one that is already imported cannot be replaced and is an error.
"""

from tessera.compat.install import PATH, TRITON_VERSION, install, is_ours

__all__ = ["PATH", "TRITON_VERSION", "install", "is_ours"]

install()
