"""`PolyencoderReranker`: LangChain's `BaseDocumentCompressor`. The extra `langchain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyencoder.adapters.relevance import Relevance, relevance_of
from polyencoder.packages import require
from polyencoder.ranker.ranker import Ranker

require("langchain_core", extra="langchain")

from langchain_core.callbacks import Callbacks  # noqa: E402 - behind the message that names the extra
from langchain_core.documents import BaseDocumentCompressor, Document  # noqa: E402
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr  # noqa: E402


class PolyencoderReranker(BaseDocumentCompressor):
    """Orders documents for a query; each gets its `relevance_score` in the metadata.

    Examples:
        >>> PolyencoderReranker(model="runs/mine", top_n=3)  # or a `Ranker`, or "http://127.0.0.1:8000"
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: Ranker | str
    top_n: int | None = Field(None, ge=1)
    api_key: SecretStr | None = None
    served_model: str | None = None
    _relevance: Relevance = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        key = None if self.api_key is None else self.api_key.get_secret_value()
        self._relevance = relevance_of(self.model, api_key=key, served_model=self.served_model)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents, best first: copies, with their relevance, 0 to 1."""
        texts = [document.page_content for document in documents]
        found = self._relevance(query, texts, top_n=self.top_n)
        return [
            documents[place].model_copy(
                update={"metadata": {**documents[place].metadata, "relevance_score": relevance}}
            )
            for place, relevance in found
        ]
