"""Simplify tile IR for all targets; `pipeline.py` has the order of these passes."""
