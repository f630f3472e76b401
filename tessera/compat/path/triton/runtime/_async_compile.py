"""`triton.runtime._async_compile`."""

from tessera.compat.absent import absent
from tessera.runtime.launching.async_compile import AsyncCompileMode, FutureKernel, active_mode

__all__ = ["AsyncCompileMode", "FutureKernel", "active_mode"]
__getattr__ = absent(__name__)
