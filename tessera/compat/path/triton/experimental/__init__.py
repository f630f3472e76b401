"""`triton.experimental`: nothing of it exists here."""

from tessera.compat.absent import absent

__getattr__ = absent(__name__)
