"""Passes over the IR, one idea a file (rank 4)."""

from tessera.passes.neutral.pipeline import neutral_pipeline

__all__ = ["neutral_pipeline"]
