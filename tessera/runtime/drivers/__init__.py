"""Drivers: what loads kernels and launches them, one for each kind of device."""
