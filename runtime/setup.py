"""The modules of polyencoder-runtime: `polyencoder.runtime`, and what it imports of the library beside this folder."""

from __future__ import annotations

from setuptools import setup

MODULES = """
__init__ __main__ checks config errors lazy packages processor ranked selector validation
calibration.__init__ calibration.probability calibration.relevance
cli.__init__ cli.main cli.removed cli.serve cli.shared.__init__ cli.shared.output
data.__init__ data.example data.layouts data.ubuntu
export.__init__ export.onnx.__init__ export.onnx.exported export.onnx.files export.onnx.graph
hub.__init__ hub.resolve
index.__init__ index.base index.certificate index.diversity index.entries index.filters index.grouping index.hits
index.hybrid index.meta index.model index.options index.rescoring index.shortlists index.stored_tokens index.token_rows
index.vector_files index.vectors index.words
index.faiss.__init__ index.faiss.description index.faiss.file index.faiss.kinds index.faiss.library index.faiss.lists
index.faiss.search index.faiss.tuning
index.folder.__init__ index.folder.catalogue index.folder.change index.folder.conditions index.folder.database
index.folder.encoding index.folder.files index.folder.index index.folder.schema index.folder.state index.folder.words
encoding.__init__ encoding.fingerprint encoding.protocol
runtime.__init__ runtime.ranker
search.__init__ search.contexts search.late search.products search.rows search.scan search.scores
settings.__init__ settings.base settings.common settings.fields settings.yaml_file
storage.__init__ storage.digests storage.files storage.names storage.publish storage.temporary storage.versioned
text.__init__ text.batches text.context text.dialogue text.encoder text.memory text.options
text.subwords.__init__ text.subwords.tokenizer text.subwords.words
"""

setup(
    package_dir={"": "../projects"},
    py_modules=[f"polyencoder.{module}" for module in MODULES.split()],
    packages=["polyencoder.serving", "polyencoder.serving.page"],  # whole, with their files
    package_data={"polyencoder.serving.page": ["*.html", "*.css", "*.js"]},
    options={"egg_info": {"egg_base": "."}},  # not beside the modules, where the library would find it
)
