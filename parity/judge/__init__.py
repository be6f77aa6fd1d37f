"""Two recordings of one case: what differs, why, and whether that passes."""
