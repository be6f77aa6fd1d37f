"""Goldens in another environment, and the package that makes the difference: `parity upgrade`."""
