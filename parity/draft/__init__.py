"""Writes the moved function from the goldens of a site and its old source."""
