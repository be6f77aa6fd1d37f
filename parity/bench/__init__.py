"""How fast each backend answers the same requests."""
