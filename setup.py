"""Maps the project's folders into `polyencoder` and into ParlAI's own namespaces.

The mapping is the whole of the integration with ParlAI: `-m polyencoder`, `-t selection:...` and `zoo:polyencoder/...`
are found by ParlAI's ordinary import rules, with no registration and no patch. It needs to be computed, so it lives
here; everything that is plain data lives in pyproject.toml.

The folders themselves hold no __init__.py: one in agents/ would become parlai/agents/__init__.py, ParlAI's own file.
"""

from __future__ import annotations

from setuptools import find_packages, setup

# folder in this repository -> the namespace that its packages join
NAMESPACES = {"projects": "", "agents": "parlai.agents.", "tasks": "parlai.tasks.", "zoo": "parlai.zoo."}

package_dir = {
    namespace + package: f"{folder}/{package.replace('.', '/')}"
    for folder, namespace in NAMESPACES.items()
    for package in find_packages(folder)
}

setup(packages=list(package_dir), package_dir=package_dir)
