"""Passes transform the IR, one idea a file; each folder imports only from those below it (rank 4)."""

from tessera.passes.neutral.pipeline import CLEAN_UP, neutral_pipeline

__all__ = ["CLEAN_UP", "neutral_pipeline"]
