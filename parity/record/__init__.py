"""What code does, seen from outside: calls and events become rows, rows become goldens."""
