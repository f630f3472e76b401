"""Binds the CUDA driver through ctypes: its functions and the structures that they take."""
