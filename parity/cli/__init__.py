"""The command line and its small commands."""
