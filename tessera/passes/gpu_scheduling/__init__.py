"""Divide work on a GPU: programs over CTAs and clusters, a program over warp roles with their rings of buffers.

`pointer_to_tma` is here since it acts only where warp specialisation will use what it makes.
"""
