"""The models of this project: what the tiny checkpoints were taught, and a real one."""
