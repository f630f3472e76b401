"""Compiles what torch captures: the backend of `torch.compile`, and what it needs to know of torch."""
