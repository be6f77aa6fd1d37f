"""Recorded truth: goldens, what was accepted, and the values that a check is made of."""
