"""Plans what a graph runs: its kernels and calls in order, and where tensors lie."""
