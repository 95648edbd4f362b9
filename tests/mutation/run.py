"""The command `cosmic-ray`, whose tests are forked with their imports done: python run.py exec CONFIG SESSION.

The packages are imported once; the library, which the mutants change, anew for each of them.
"""

from __future__ import annotations

import subprocess
import sys

from cosmic_ray.cli import main

from tests import forked

PACKAGES = ["pytest", "hypothesis", "numpy.testing", "sklearn.feature_extraction.text", "sklearn.metrics"]
PACKAGES += ["torch", "torch.distributed.tensor", "transformers.models.bert.modeling_bert", "tokenizers", "datasets"]

if __name__ == "__main__":
    forked.PRELOADED[:] = PACKAGES
    subprocess.Popen = forked.Forked  # type: ignore[misc]
    main(sys.argv[1:])
