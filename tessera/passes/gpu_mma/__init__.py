"""Order matrix instructions on a GPU: chains across iterations, asynchronous MMAs, loops split at a condition."""
