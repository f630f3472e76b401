"""Check kernels: elements of checked builds, what fits on the target, the order of shared-memory accesses."""
