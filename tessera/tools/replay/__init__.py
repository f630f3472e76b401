"""Replay shows which kernels' code differs between two commits: `python -m tessera.tools.replay compare BASE`."""
