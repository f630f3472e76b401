"""Target-neutral passes on tile IR, and their order (`pipeline.py`)."""
