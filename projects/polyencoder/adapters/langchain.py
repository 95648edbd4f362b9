"""`PolyencoderReranker`: LangChain's `BaseDocumentCompressor`. The extra `langchain`."""

from __future__ import annotations

from collections.abc import Sequence

from polyencoder.adapters.relevance import Reranker, select_best_documents
from polyencoder.packages import require

require("langchain_core", extra="langchain")

from langchain_core.callbacks import Callbacks  # noqa: E402 - behind the message that names the extra
from langchain_core.documents import BaseDocumentCompressor, Document  # noqa: E402
from pydantic import ConfigDict  # noqa: E402


class PolyencoderReranker(Reranker, BaseDocumentCompressor):
    """Orders documents for a query; each gets its `relevance_score` in the metadata, but empty ones, which come last.

    Examples:
        >>> PolyencoderReranker(model="runs/mine", top_n=3)  # or a `Ranker`, or "http://127.0.0.1:8000"
    """

    model_config = ConfigDict(extra="forbid")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents, best first: copies, with their relevance, 0 to 1."""
        texts = [document.page_content for document in documents]
        best = []
        for idx, relevance in select_best_documents(self._relevance, query, texts, top_n=self.top_n):
            score = {} if relevance is None else {"relevance_score": relevance}
            best.append(documents[idx].model_copy(update={"metadata": {**documents[idx].metadata, **score}}))
        return best
