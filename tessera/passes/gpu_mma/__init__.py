"""GPU passes that order matrix instructions: chains over iterations, asynchronous MMA, loops split at a condition."""
