"""polyencoder-runtime: the library beside this folder, whole; what needs torch says so."""

from __future__ import annotations

from setuptools import find_packages, setup

if not (packages := find_packages("../projects")):  # a source distribution would have none of them
    raise SystemExit("../projects is not there: build a wheel in a clone, with `python -m build --wheel runtime`")

setup(
    package_dir={"": "../projects"},
    packages=packages,
    package_data={"*": ["py.typed", "**/*.json", "**/*.txt"], "polyencoder.serving.page": ["*.html", "*.css", "*.js"]},
    options={"egg_info": {"egg_base": "."}},  # not beside the modules, where the library would find it
)
