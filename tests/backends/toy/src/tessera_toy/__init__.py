"""The back end "toy": what the entry point names is this module, with a `compiler` and a `driver`."""

from tessera_toy.backend import ToyBackend as compiler
from tessera_toy.backend import ToyDriver as driver

__all__ = ["compiler", "driver"]
