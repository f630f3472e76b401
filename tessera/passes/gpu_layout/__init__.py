"""Decide how tiles are distributed over a GPU: layouts of accesses, matrix instructions and all other ops."""
