"""The stages of a call, one file each: how it is compared, what must hold of it, its causes."""
