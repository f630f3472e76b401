"""Lowers ATen operations to graph IR: each module registers the rules of some of them."""
