"""GPU passes that move data: tensor maps, asynchronous copies ahead of their use, shared memory and its barriers."""
