"""Distribute the elements of tiles over a GPU: layouts of accesses, matrix instructions and all other ops."""
