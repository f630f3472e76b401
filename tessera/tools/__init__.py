"""Tools around the compiler: host-side descriptors, command line, reports."""
