"""polyencoder-runtime: the library beside this folder, whole; what needs torch says so."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    package_dir={"": "../projects"},
    packages=find_packages("../projects"),
    package_data={"*": ["py.typed", "**/*.json", "**/*.txt"], "polyencoder.serving.page": ["*.html", "*.css", "*.js"]},
    options={"egg_info": {"egg_base": "."}},  # not beside the modules, where the library would find it
)
