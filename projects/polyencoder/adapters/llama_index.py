"""`PolyencoderRerank`: LlamaIndex's `BaseNodePostprocessor`. The extra `llama-index`."""

from __future__ import annotations

from polyencoder.adapters.relevance import Reranker, select_best_documents
from polyencoder.errors import InputError
from polyencoder.packages import require

require("llama_index.core", extra="llama-index")

from llama_index.core.postprocessor.types import BaseNodePostprocessor  # noqa: E402 - behind the message of the extra
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle  # noqa: E402


class PolyencoderRerank(Reranker, BaseNodePostprocessor):
    """Orders nodes for a query, by the text used for embeddings; scores are relevances, 0 to 1, or None for empty ones.

    Examples:
        >>> PolyencoderRerank(model="runs/mine", top_n=3)  # or a `Ranker`, or "http://127.0.0.1:8000"
    """

    @classmethod
    def class_name(cls) -> str:
        return "PolyencoderRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("no query to order the nodes for")
        texts = [scored.node.get_content(metadata_mode=MetadataMode.EMBED) for scored in nodes]
        ranked = select_best_documents(self._relevance, query_bundle.query_str, texts, top_n=self.top_n)
        return [NodeWithScore(node=nodes[idx].node, score=relevance) for idx, relevance in ranked]
