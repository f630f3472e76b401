"""GPU passes that decide where the elements of tiles lie: layouts of accesses, matrix instructions and all others."""
