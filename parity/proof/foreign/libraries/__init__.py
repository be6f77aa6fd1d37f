"""A file for each library: its calls (`old_...`), their moves, cases, and mistakes in the moves."""
