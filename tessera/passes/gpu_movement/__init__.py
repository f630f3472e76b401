"""Move data on a GPU: tensor maps, asynchronous copies ahead of their use, shared memory and its barriers."""
