"""Single files that are vendored beside gen_engine.py and use its public names only."""
