"""Other people's generation code, moved onto `gen_engine`: libraries that nobody here wrote."""
