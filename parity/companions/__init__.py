"""Single files that are vendored beside gen_engine.py and use its public names only."""

# `from . import gen_engine` in a companion: in this package, too, it gives the engine.
import gen_engine as gen_engine
