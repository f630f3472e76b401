"""Functions beside the core language: `libdevice` (mathematics), `cuda` and `hip` (facts of launch and machine)."""

from tessera.language.extra import cuda, hip, libdevice

__all__ = ["cuda", "hip", "libdevice"]
