"""`EncodeCandidates`: maps Arrow tables of candidates to tables with their vectors, in any process."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

from polyencoder.config import Backend, WeightDtype
from polyencoder.encoding.encode import encode_candidates
from polyencoder.errors import InputError
from polyencoder.index.candidates import candidate_of, plain
from polyencoder.index.entries import Candidate, checked
from polyencoder.index.meta import Fingerprints, separable
from polyencoder.index.parts import FINGERPRINTS
from polyencoder.packages import require
from polyencoder.ranker import Ranker


class EncodeCandidates:
    """Encodes tables of candidates. Pickles as the name of its model, for other processes.

    Each process loads the model at the first call. Equal tables give bit-identical results in processes with equally
    many threads.

    Examples:
        >>> encode = EncodeCandidates("models/mine")
        >>> encode(pyarrow.table({"text": ["hello", "hi there"]})).column_names
        ['id', 'text', 'vector', 'metadata']

    Args:
        model: a model folder or hub id, which all processes can read.
        device: such as "cpu" or "cuda"; None: a GPU if available.
        backend: as of `Ranker.from_pretrained`.
        dtype: of the encoder, as there.
    """

    def __init__(
        self, model: str, *, device: str | None = None, backend: Backend = "torch", dtype: WeightDtype = "float32"
    ) -> None:
        self._settings = (model, device, backend, dtype)

    @property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints of its model, which it loads."""
        return _loaded(*self._settings)[1]

    def __call__(self, batch: Any) -> Any:
        """Returns the table of the candidates with their vectors.

        Args:
            batch: a table or record batch of Arrow with a column `text` and optionally `id`; other columns, and the
                fields of `metadata` (an object or its JSON), are metadata.

        Returns:
            A table with `id`, `text`, `vector` (float32 [dim] of fixed size) and `metadata` (JSON, or null); the
            model's fingerprints are in the metadata of its schema. In the order of the batch.

        Raises:
            InputError: an invalid candidate; it names the row of the batch, from 1.
        """
        arrow = require("pyarrow", extra="data")
        ranker, fingerprints = _loaded(*self._settings)
        model = separable(ranker)
        table = candidates_table(
            candidate_of(plain(record), where=f"row {row}") for row, record in enumerate(batch.to_pylist(), start=1)
        )
        texts = table.column("text").to_pylist()
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}  # each text is encoded once
        vectors = encode_candidates(model, ranker.text, list(places), remember=False).float().cpu()
        flat = vectors[[places[text] for text in texts]].numpy().ravel()
        column = arrow.FixedSizeListArray.from_arrays(arrow.array(flat, arrow.float32()), model.dim)
        table = table.add_column(2, "vector", column)
        return table.replace_schema_metadata({**(batch.schema.metadata or {}), FINGERPRINTS: json.dumps(fingerprints)})


def candidates_table(candidates: Iterable[Candidate]) -> Any:
    """Candidates as a table with `id`, `text` and `metadata` (JSON).

    Raises InputError for one that no index can hold.
    """
    arrow = require("pyarrow", extra="data")
    rows = []
    for candidate in candidates:
        try:
            text, id_, metadata = checked(candidate)
        except ValueError as error:
            raise InputError(f"{candidate.where}: not a candidate that an index can hold: {error}") from None
        rows.append({"id": id_, "text": text, "metadata": metadata})
    return arrow.Table.from_pylist(
        rows, schema=arrow.schema([(name, arrow.string()) for name in ("id", "text", "metadata")])
    )


@functools.lru_cache(maxsize=1)
def _loaded(model: str, device: str | None, backend: Backend, dtype: WeightDtype) -> tuple[Ranker, Fingerprints]:
    ranker = Ranker.from_pretrained(model, device=device, backend=backend, dtype=dtype)
    return ranker, Fingerprints.of(ranker)
