"""The tools around the compiler are here: host-side descriptors, command line, reports."""
