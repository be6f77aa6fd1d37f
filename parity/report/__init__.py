"""What the judge found, for people and for programs."""
