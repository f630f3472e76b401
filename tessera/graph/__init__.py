"""Compiles graphs of whole-tensor operations: loops over index spaces, fused and turned into kernels."""
