"""`PolyencoderRanker`: a component of Haystack. The extra `haystack`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyencoder.adapters.relevance import Relevance, make_relevance, select_best_documents
from polyencoder.errors import InputError
from polyencoder.packages import require
from polyencoder.ranker import Ranker

require("haystack", extra="haystack")

from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402 - behind the extra's message
from haystack.utils import Secret  # noqa: E402


@component
class PolyencoderRanker:
    """Orders documents for a query; scores are relevances, 0 to 1, or None for empty ones.

    Examples:
        >>> PolyencoderRanker("runs/mine", top_k=3)  # or a `Ranker`, or "http://127.0.0.1:8000"
    """

    def __init__(
        self,
        model: Ranker | str,
        *,
        top_k: int | None = None,
        api_key: Secret | None = None,
        served_model: str | None = None,
    ) -> None:
        self.model = model
        self.top_k = _check_top_k(top_k)
        self.api_key = api_key
        self.served_model = served_model
        self._relevance: Relevance | None = None

    def warm_up(self) -> None:
        """Loads the model, if it is not loaded."""
        if self._relevance is None:
            key = None if self.api_key is None else self.api_key.resolve_value()
            self._relevance = make_relevance(self.model, api_key=key, served_model=self.served_model)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """The best documents, best first: copies, with their relevance as score. `top_k` overrides the component's."""
        top_k = self.top_k if top_k is None else _check_top_k(top_k)
        self.warm_up()
        assert self._relevance is not None
        ranked = select_best_documents(self._relevance, query, [doc.content or "" for doc in documents], top_n=top_k)
        return {"documents": [replace(documents[idx], score=relevance) for idx, relevance in ranked]}

    def to_dict(self) -> dict[str, Any]:
        """Serialises the component. InputError for a `Ranker` that was not loaded from a folder."""
        model = self.model if isinstance(self.model, str) else self.model.source
        if model is None:
            raise InputError("the ranker was not loaded from a folder: save it, and give the folder")
        key = None if self.api_key is None else self.api_key.to_dict()
        return default_to_dict(self, model=str(model), top_k=self.top_k, api_key=key, served_model=self.served_model)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PolyencoderRanker:
        """Deserialises the component."""
        parameters = data["init_parameters"]
        if parameters.get("api_key") is not None:
            parameters["api_key"] = Secret.from_dict(parameters["api_key"])
        return default_from_dict(cls, data)


def _check_top_k(top_k: int | None) -> int | None:
    if top_k is not None and top_k <= 0:
        raise ValueError(f"top_k must be > 0, but got {top_k}")  # as Haystack's own rankers say it
    return top_k
