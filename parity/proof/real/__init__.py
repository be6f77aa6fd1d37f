"""Call sites on a real model: recorded from plain transformers, moved faithfully, and moved with mistakes."""
