"""The judge, judged."""
