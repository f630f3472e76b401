"""`triton.compiler.code_generator`: tessera's front end is organised otherwise."""

from tessera.compat.absent import absent

__getattr__ = absent(__name__)
