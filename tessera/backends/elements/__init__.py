"""Lowers element-wise ops, casts and mathematical functions for every back end that writes LLVM IR.

A back end offers an `ElementBuilder`, which writes instructions on one element or on a vector of them.
"""
