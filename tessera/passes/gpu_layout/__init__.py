"""Decide where the elements of tiles lie on a GPU: layouts of accesses, matrix instructions and all other ops."""
