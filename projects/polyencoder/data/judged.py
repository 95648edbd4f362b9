"""Reads pairs from judgements: qrels in a folder of BEIR's layout, beside the queries and the corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyencoder.data.contexts import read_queries
from polyencoder.data.example import Example
from polyencoder.data.readers import DataFile, OnBad, iter_records, raise_it
from polyencoder.data.trec import iter_judgements
from polyencoder.errors import InputError

CORPUS, QUERIES = "corpus.jsonl", ("queries.jsonl", "queries.tsv")
FOLDER = "qrels"


def is_judged(source: str | Path | DataFile) -> bool:
    """Whether a file has qrels: `FOLDER/qrels/train.tsv`, where FOLDER has a corpus."""
    path = Path(str(source))
    return path.parent.name == FOLDER and bool(_find_beside(path, CORPUS))


def read_judged_pairs(
    source: str | Path | DataFile, *, bad: OnBad = raise_it
) -> Iterator[tuple[Example, dict[str, Any]]]:
    """Yields an example for each judged query, with its record, in the order of the file.

    Documents with a label above 0 are right, and those with 0 are wrong candidates. Without a label of 0 there are no
    candidates: negatives come from the batch, or are sampled. Only documents that are judged are kept in memory.

    source: the qrels, in BEIR's format or TREC's. The folder above has `corpus.jsonl`, and `queries.jsonl` or
    `queries.tsv`, which may be compressed. bad: gets the error of a query whose labels are all 0, or of an id that the
    queries or the corpus lack. InputError for a file that cannot be read, and missing queries.
    """
    path = Path(str(source))
    queries = next((candidate for name in QUERIES if (candidate := _find_beside(path, name))), None)
    if queries is None:
        raise InputError(f"{path}: {path.parent.parent} has no {' or '.join(QUERIES)}")
    turns = read_queries(queries)
    judged: dict[str, dict[str, int]] = {}
    locations: dict[str, str] = {}
    for where, query, document, label in iter_judgements(source):
        locations.setdefault(query, where)
        if judged.setdefault(query, {}).setdefault(document, label) != label:
            raise InputError(f"{where}: judges the document {document!r} for the query {query!r} a second time")
    corpus = _find_beside(path, CORPUS)
    texts = _read_texts(corpus, {document for labels in judged.values() for document in labels})
    for query, labels in judged.items():
        try:
            example = _make_example(turns.get(query), labels, texts, query=query, where=locations[query], corpus=corpus)
        except InputError as error:
            bad(InputError(f"{locations[query]}: {error}"))
        else:
            yield example, _make_record(example)


def _find_beside(path: Path, name: str) -> str:
    """The file of this name in the folder above the qrels' folder, perhaps compressed; "" if there is none."""
    folder = path.parent.parent
    return next(
        (
            str(folder / f"{name}{end}")
            for end in ("", ".gz", ".bz2", ".xz", ".zst")
            if (folder / f"{name}{end}").is_file()
        ),
        "",
    )


def _read_texts(corpus: str, ids: set[str]) -> dict[str, str]:
    """The texts of these documents, with their titles before them, as `polyencoder index` reads them."""
    texts: dict[str, str] = {}
    for _, record in iter_records(corpus):
        id_ = str(record.get("_id", record.get("id")))
        if id_ in ids:
            texts[id_] = f"{record.get('title') or ''} {record.get('text') or ''}".strip()
    return texts


def _make_example(
    turns: list[str] | None, labels: Mapping[str, int], texts: Mapping[str, str], *, query: str, where: str, corpus: str
) -> Example:
    if turns is None:
        raise InputError(f"the query {query!r} is not among the queries")
    if missing := next((document for document in labels if not texts.get(document)), None):
        raise InputError(f"the document {missing!r} of the query {query!r} has no text in {corpus}")
    numbers: dict[str, int] = {}
    for document, label in labels.items():  # documents with equal texts have the highest of their labels
        numbers[texts[document]] = max(label, numbers.get(texts[document], 0))
    example = Example.graded(turns, list(numbers), numbers.values(), where=where)
    if 0 in numbers.values():
        return example
    return Example(turns, example.label, None, where, example.labels)


def _make_record(example: Example) -> dict[str, Any]:
    """The record of graded candidates that a file would have."""
    numbers = example.labels or {example.label: 1.0}
    texts = list(example.candidates or numbers)
    return {"context": [*example.turns], "candidates": texts, "labels": [numbers.get(text, 0.0) for text in texts]}
