"""Makes the call of a planned graph, on the arrays of a host, and folders that run it again by themselves."""
