"""Check kernels: elements in checked builds, resources of the target, the order of shared-memory accesses."""
