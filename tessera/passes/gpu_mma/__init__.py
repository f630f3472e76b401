"""Order matrix instructions on a GPU: chains over iterations, asynchronous MMA, loops split at a condition."""
