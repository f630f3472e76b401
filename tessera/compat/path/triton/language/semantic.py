"""`triton.language.semantic`: tessera lowers operations by registered functions instead."""

from tessera.compat.absent import absent

__getattr__ = absent(__name__)
