"""Drivers load kernels and launch them; there is one for each kind of device."""
