"""`parity scan`: the inventory of a repository's call sites, read from the source alone."""
