"""What was recorded twice -> what it means."""
