"""`triton.runtime`."""

# pyright: reportUnsupportedDunderAll=false, reportUnusedImport=false
import sys

import triton.runtime.jit  # before the names of tessera.runtime, where `jit` is the decorator
from tessera import runtime as _runtime
from tessera.compat.absent import absent
from tessera.runtime import *
from tessera.runtime import __all__ as _names
from triton.runtime import autotuner, cache, errors, interpreter
from triton.runtime.cache import RedisRemoteCacheBackend
from triton.runtime.driver import driver  # the object; the module is imported by its path
from triton.runtime.errors import InterpreterError, OutOfResources

jit = sys.modules["triton.runtime.jit"]
__all__ = [*_names, "InterpreterError", "OutOfResources", "RedisRemoteCacheBackend"]
__getattr__ = absent(__name__, _runtime)
