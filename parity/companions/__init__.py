"""Files that are vendored beside gen_engine.py; each uses its public names and nothing of this harness."""
