"""Move data on a GPU: tensor maps, asynchronous copies ahead of use, shared memory and its barriers."""
