"""`triton.runtime.driver`: the module; `triton.runtime` has the object under the same name."""

from tessera.compat.absent import absent
from tessera.runtime import driver as _package_driver
from tessera.runtime.driver import ActiveDriver as DriverConfig

driver = _package_driver
__all__ = ["DriverConfig", "driver"]
__getattr__ = absent(__name__)
