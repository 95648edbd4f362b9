"""`MtebRanker`: a ranker in MTEB's tasks of retrieval and reranking. The extra `mteb`."""

from __future__ import annotations

from typing import Any

from polyencoder.errors import InputError
from polyencoder.evaluation.runs import rerank_run, search_run
from polyencoder.index.entries import Candidate
from polyencoder.packages import get_version, require
from polyencoder.ranker import Ranker

require("mteb", extra="mteb")

from mteb.models import ModelMeta  # noqa: E402 - behind the extra's message
from mteb.types import (  # noqa: E402
    CorpusDatasetType,
    QueryDatasetType,
    RetrievalOutputType,
    TopRankedDocumentsType,
)

_EMPTY = "."  # stands for a document without text


class MtebRanker:
    """A ranker of any architecture as a search model of MTEB (`mteb.models.SearchProtocol`).

    The corpus becomes an exact index, and queries are its contexts: a dialogue stays one of several turns. With the
    results of another system (`top_ranked`, in tasks of reranking) the ranker scores each pair; a cross-encoder can do
    nothing else. Prompts are the ranker's own, not MTEB's.

    Examples:
        >>> mteb.evaluate(MtebRanker(Ranker.load("runs/my")), mteb.get_benchmark("NanoBEIR"))

    Args:
        ranker: or its folder, file or hub id.
        name: in MTEB's results, `ORGANIZATION/MODEL`.
    """

    def __init__(self, ranker: Ranker | str, *, name: str = "polyencoder/ranker") -> None:
        self.ranker = ranker if isinstance(ranker, Ranker) else Ranker.load(ranker)
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name,
                "revision": get_version("parlai-polyencoder"),
                "framework": ["PyTorch"],
                "embed_dim": self.ranker.model.dim if self.ranker.model.has_vectors else None,
            }
        )
        self._texts: dict[str, str] = {}

    def index(self, corpus: CorpusDatasetType, **_: Any) -> None:
        """Takes the corpus. MTEB calls it before `search`."""
        self._texts = {row["id"]: _get_text(row) for row in corpus}

    def search(
        self,
        queries: QueryDatasetType,
        *,
        top_k: int,
        top_ranked: TopRankedDocumentsType | None = None,
        **_: Any,
    ) -> RetrievalOutputType:
        """The best `top_k` documents of each query, of all or `top_ranked`. InputError for all without vectors."""
        dialogues = {row["id"]: row["text"] for row in queries}
        if top_ranked is not None:
            first = {id_: dict.fromkeys(top_ranked[id_], 0.0) for id_ in dialogues}
            run = rerank_run(self.ranker, first, dialogues, self._texts, depth=max(map(len, first.values()), default=1))
            return {id_: dict([*scores.items()][:top_k]) for id_, scores in run.items()}
        if not self.ranker.model.has_vectors:
            raise InputError(
                f"a {self.ranker.model.title} cannot search a corpus: give a task of reranking, or the results of "
                "another model to rerank (`convert_to_reranking` of the task)"
            )
        index = self.ranker.index(Candidate(id_, text) for id_, text in self._texts.items())
        return search_run(self.ranker, index, dialogues, depth=top_k)


def _get_text(row: dict[str, Any]) -> str:
    joined = f"{row.get('title') or ''} {row['text']}".strip()
    return joined or _EMPTY
