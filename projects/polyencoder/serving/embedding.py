"""Encodes texts as one vector each: `/v1/embeddings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from polyencoder.errors import InputError
from polyencoder.ranker.ranker import Ranker
from polyencoder.serving.batch_forward import candidate, context
from polyencoder.serving.engine import Engine
from polyencoder.serving.model_thread import Job

__all__ = ["InputType", "Vectors", "embed", "gives_embeddings"]

InputType = Literal["query", "document"]


class Vectors(NamedTuple):
    """Vectors of texts, float32 [texts, dim], on the CPU."""

    vectors: Tensor
    tokens: int


def gives_embeddings(ranker: Ranker) -> bool:
    """Whether a context has one vector, as a candidate has."""
    return ranker.model.config.architecture in ("bi", "convert")


async def embed(engine: Engine, texts: Sequence[str], *, input_type: InputType) -> Vectors:
    """A vector for each text; those of a query and a document multiplied are the score.

    Raises:
        InputError: the model has several vectors for a context, or none; or a text is beyond the limits.
    """
    ranker = engine.ranker
    if not gives_embeddings(ranker):
        raise InputError(
            f"the model is a {ranker.model.config.architecture}-encoder, which has not one vector for a text, as "
            "embeddings are: use /v1/rerank or /v1/search",
            argument="model",
        )
    texts = engine.texts(texts, name="input")
    if input_type == "query":
        for place, one in enumerate(texts):
            engine.turns([one], name=f"input.{place}")
        ids = await engine.tokenized(lambda: [ranker.text.context_ids([one]) for one in texts])
        job = Job([context(one) for one in ids], _of_contexts)
    else:
        ids = await engine.tokenized(lambda: ranker.text.candidate_ids(texts, remember=False))
        job = Job([candidate(one) for one in ids], _of_candidates)
    tokens = engine.tokens(job.items, name="input")
    return Vectors(await engine.run(job), tokens)


def _of_contexts(jobs: Sequence[Job]) -> list[Tensor]:
    return [torch.cat([one.vectors[:, 0] for one in job.results]).float().cpu() for job in jobs]


def _of_candidates(jobs: Sequence[Job]) -> list[Tensor]:
    return [torch.stack(job.results).float().cpu() for job in jobs]
