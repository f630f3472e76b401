"""Simplify tile IR for all targets; `pipeline.py` lists these passes in order."""
