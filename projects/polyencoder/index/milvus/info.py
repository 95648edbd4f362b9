"""Human-readable summary of a Milvus index; its model is not needed."""

from __future__ import annotations

import json
from contextlib import closing

from polyencoder.errors import CheckpointError
from polyencoder.index.milvus.collection import MilvusCollection

__all__ = ["described_milvus"]


def described_milvus(where: str) -> list[str]:
    """What a Milvus index is, in lines: its candidates, model, vectors and how they are searched.

    Raises:
        PolyencoderError: if the server is away, or the file is none of Milvus Lite.
        CheckpointError: if there is no index.
    """
    with closing(MilvusCollection(where, create=False)) as collection:
        if (description := collection.description()) is None:
            raise CheckpointError(collection.how_to_make)
        made = json.loads(description)
        flat = collection.load()
        return [
            f"{collection.where}: {collection.count():,} candidates",
            f"model: {made['model_name'] or 'not known'} ({made['architecture']}-encoder, fingerprint "
            f"{made['model_fingerprint']})",
            f"vectors: of {made['dim']} numbers, float32",
            "search: Milvus, " + ("flat: results can be certified" if flat else "auto: by the index that it chooses"),
        ]
