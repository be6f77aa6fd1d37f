"""Taps: one file for each library, what is tapped of it and what reads the calls."""
