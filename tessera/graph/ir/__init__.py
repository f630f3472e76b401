"""Holds the IR of graphs: types, operations, a builder of both, and their meaning in NumPy."""
