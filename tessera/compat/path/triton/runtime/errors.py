"""`triton.runtime.errors`."""

from tessera.compat.absent import absent
from tessera.errors import AutotunerError, InterpreterError, OutOfResources, PTXASError, TritonError

__all__ = ["AutotunerError", "InterpreterError", "OutOfResources", "PTXASError", "TritonError"]
__getattr__ = absent(__name__)
