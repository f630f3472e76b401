"""The graph compiler: whole-tensor programs as loops over index spaces, fused and turned into kernels (rank 8)."""
