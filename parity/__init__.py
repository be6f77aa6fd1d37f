"""The harness that proves that a call site moved onto gen_engine.py still gives what it gave."""
