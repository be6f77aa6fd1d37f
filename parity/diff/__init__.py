"""Compare two paths to one model's answers, without a golden: `python -m parity diff A B`."""
