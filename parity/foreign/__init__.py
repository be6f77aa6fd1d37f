"""Other people's generation code, moved onto `gen_engine`: the harness is tried on libraries that nobody here wrote."""
