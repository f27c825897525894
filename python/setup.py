"""Builds the package and, where `make` has built it, puts libdeepinfer.so into it.

Everything else is in pyproject.toml. Without the library the package is pure Python and looks for
an installed one (see deepinfer/_library.py).
"""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent


def libraries():
    """The libraries to carry: DEEPINFER_LIBRARY's, else those of the checkout's release build."""
    named = os.environ.get("DEEPINFER_LIBRARY")
    if named:
        return [Path(named)]
    return sorted((HERE.parent / "build" / "release").glob("libdeepinfer*.so"))


def version():
    for file in (HERE.parent / "VERSION", HERE / "VERSION"):
        if file.exists():
            return file.read_text().strip()
    return "0"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = Path(self.build_lib) / "deepinfer" / "lib"
        for library in libraries():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, target / library.name)


class PlatformWheel(bdist_wheel):
    """For this platform, if it carries a library, but for any Python: nothing is linked to it."""

    def get_tag(self):
        _, _, platform = super().get_tag()
        return ("py3", "none", platform if libraries() else "any")


class MaybeBinary(Distribution):
    def has_ext_modules(self):
        return bool(libraries())


setup(
    version=version(),
    distclass=MaybeBinary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
)
