"""The settings of `polyencoder evaluate`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from cyclopts import Parameter

from polyencoder.data.layouts import Columns
from polyencoder.index.filters import Exactness
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Files, OneIndex
from polyencoder.settings.metadata import Needs, Parlai, Without
from polyencoder.validation import Count

MEASURES = ("nDCG@10", "RR@10", "AP", "R@100")
"""The measures by default, by their names in ir_measures."""
DEPTH = 1000
"""Results of a query, as in TREC and BEIR."""

_OF_PAIRS = Needs("data")
_OF_QRELS = Needs("qrels", or_with="beir")
_OF_SEARCH = Without("rerank_run")


@settings(panel="Retrieval with judgements (qrels)")
class QrelsSettings(Settings):
    """Judgements, and the retrieval that they judge."""

    qrels: Annotated[str | None, Without("beir")] = None
    """FILE of judgements: TREC's four columns, or BEIR's three with a header."""
    queries: Annotated[str | None, Needs("qrels")] = None
    """FILE of the queries: JSON lines with id or _id and text (or context or messages), or TSV with the id and the
    text."""
    beir: str | None = None
    """FOLDER in BEIR's layout, in place of --qrels and --queries: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."""
    split: Annotated[str, Needs("beir")] = "test"
    """Which qrels of --beir."""
    index: Annotated[OneIndex | None, _OF_QRELS] = None
    """The index to search: its folder, or its address (milvus:... or postgres://...). With --rerank-run, the one that
    has the texts of the documents."""
    rerank_run: Annotated[str | None, _OF_QRELS] = None
    """Rerank the results of this TREC run in place of a search."""
    corpus: Annotated[Files | None, Needs("rerank_run"), Without("index")] = None
    """FILE or GLOB with the texts of the documents to rerank, as polyencoder index reads them (default: those of
    --index or --beir)."""
    measures: Annotated[tuple[str, ...], _OF_QRELS, Parameter(consume_multiple=1, allow_leading_hyphen=False)] = (
        MEASURES
    )
    """Measures, by their names in ir_measures, such as nDCG@10 P(rel=2)@5."""
    depth: Annotated[Count, _OF_QRELS] = DEPTH
    """Results of each query to find, or to rerank; the others of a run keep their order behind them."""
    exactness: Annotated[Exactness | None, _OF_QRELS, _OF_SEARCH] = None
    """The exactness of polyencoder search (default: the fastest that the index has)."""
    effort: Annotated[Count | None, _OF_QRELS, _OF_SEARCH] = None
    """Effort of FAISS, as in polyencoder search."""
    ignore_identical_ids: Annotated[bool, _OF_QRELS] = False
    """Leave out documents whose id is that of their query, as BEIR's code does."""
    compare: Annotated[str | None, _OF_QRELS, Parameter(allow_repeating=False)] = None
    """Also measure this TREC run of the same queries, with the p value of each difference."""
    run_out: Annotated[str | None, _OF_QRELS] = None
    """Write the run to this file, in TREC's format."""
    overwrite: Annotated[bool, Needs("run_out")] = False
    """Replace --run-out if it exists."""


@settings()
class EvaluateSettings(Settings):
    """Settings of an evaluation: the ranker and the data."""

    model: RankerSettings
    data: Annotated[Files | None, Parameter(alias="-d"), Without("qrels"), Without("beir")] = None
    """FILE or GLOB of examples to rank, comma-separated, or hf:NAME:SPLIT. In its place --qrels or --beir."""
    columns: Annotated[Columns, _OF_PAIRS] = field(default_factory=Columns)
    skip_bad_examples: Annotated[bool, _OF_PAIRS] = False
    """Skip and count records that cannot be used, instead of stopping at them."""
    num_negatives: Annotated[Count, _OF_PAIRS] = 19
    """Candidates to sample for an example that has none."""
    negatives: Annotated[Files | None, _OF_PAIRS] = None
    """FILE to sample them from (default: the responses of --data). With the training data and seed of polyencoder
    train, they are the ones of its own evaluations."""
    hits_at: Annotated[str, Parlai(), _OF_PAIRS] = "1,5,10"
    """Values of k for RN@k (R20@1: among 20 candidates) and hits@k, separated by commas."""
    baseline: Annotated[Literal["tfidf"] | None, _OF_PAIRS] = None
    """tfidf: also measure the keyword baseline, on the last turns, with word weights from the responses of
    --negatives."""
    retrieval: QrelsSettings = field(default_factory=QrelsSettings)
    seed: int = 0
    """Seed of sampled candidates, or of the intervals and p values."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print all metrics as one JSON object."""
