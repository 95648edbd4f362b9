"""The modules of polyencoder-runtime: `polyencoder.runtime`, and what it imports of the library beside this folder."""

from __future__ import annotations

from setuptools import setup

MODULES = """
__init__ checks config errors lazy packages
calibration.__init__ calibration.probability
export.__init__ export.onnx.__init__ export.onnx.exported export.onnx.files export.onnx.graph
hub.__init__ hub.resolve
index.__init__ index.entries index.filters index.hits index.meta index.stored_tokens index.vector_files index.words
index.faiss.__init__ index.faiss.description index.faiss.kinds
index.folder.__init__ index.folder.catalogue index.folder.conditions index.folder.database index.folder.files
index.folder.schema index.folder.words
ranker.__init__ ranker.protocol ranker.ranked
runtime.__init__ runtime.index runtime.ranker runtime.scoring
storage.__init__ storage.digests storage.fingerprint storage.names
text.__init__ text.batches text.context text.dialogue text.encoder text.memory
text.subwords.__init__ text.subwords.tokenizer text.subwords.words
"""

setup(
    package_dir={"": "../projects"},
    py_modules=[f"polyencoder.{module}" for module in MODULES.split()],
    options={"egg_info": {"egg_base": "."}},  # not beside the modules, where the library would find it
)
