"""Functions beside the core language: `libdevice` (mathematics) and `cuda` (facts of the launch)."""

from tessera.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
