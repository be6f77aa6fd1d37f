"""The judge, judged: faults that it must find, and laws of what it relies on."""
