"""Builds the wheel with its types: gen_engine.py becomes a package that a type checker reads.

A checker takes types from a package with a `py.typed` file, and never from a module that stands alone. The source stays
one file, which is what people copy.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildTyped(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        root = Path(self.build_lib)
        package = root / "gen_engine"
        package.mkdir(exist_ok=True)
        (root / "gen_engine.py").replace(package / "__init__.py")
        for typed in (package, root / "parity"):
            (typed / "py.typed").touch()


setup(cmdclass={"build_py": BuildTyped})
