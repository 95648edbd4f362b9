"""The peer: sentence-transformers behind FastAPI, a bi-encoder of the same weights, one request after the other.

    python -m benchmarks.serving.peer --model MODEL --index INDEX --threads 2

It takes and gives what ours does, and does nothing else: no limits, no metrics, no faults foreseen. Its model has one
thread that requests wait for, which is faster than FastAPI's forty, in which they take the cores from each other.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI

from benchmarks.common import use_threads
from benchmarks.search.encoding import load_sentence_transformer
from polyencoder.index.folder.index import FolderIndex
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.messages import build_answer_fields
from polyencoder.serving.rerank import RerankRequest, RerankResponse, Result
from polyencoder.serving.run import bind
from polyencoder.serving.search import SearchRequest, SearchResponse, SearchResult


def create_app(encoder: Any, texts: list[str], vectors: torch.Tensor) -> FastAPI:
    """An application around a SentenceTransformer and candidates with their vectors [n, dim]."""
    app = FastAPI(title="peer")
    vectors = torch.nn.functional.normalize(vectors, dim=1)
    model = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))

    def encode(texts: list[str]) -> torch.Tensor:
        encoded: torch.Tensor = encoder.encode_document(
            texts, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        return encoded

    async def rank(turns: list[str], k: int, documents: list[str] | None = None) -> Iterator[tuple[int, float]]:
        """The numbers and scores of the k best documents, or candidates."""

        def find_best() -> Iterator[tuple[int, float]]:
            best = ((vectors if documents is None else encode(documents)) @ encode([" ".join(turns)])[0]).topk(k)
            return zip(best.indices.tolist(), best.values.tolist(), strict=True)

        return await asyncio.get_running_loop().run_in_executor(model, find_best)

    @app.post("/v1/rerank", response_model_exclude_none=True)
    async def rerank(request: RerankRequest) -> RerankResponse:
        documents = [document if isinstance(document, str) else document.text for document in request.documents]
        best = await rank(request.collect_turns(system="leave-out"), len(documents), documents)
        results = [Result(index=idx, relevance_score=score) for idx, score in best]
        return RerankResponse(**build_answer_fields("rerank", model="peer", tokens=0), results=results, meta={})

    @app.post("/v1/search", response_model_exclude_none=True)
    async def search(request: SearchRequest) -> SearchResponse:
        best = await rank(request.collect_turns(system="leave-out"), request.top_k)
        results = [SearchResult(id=str(idx), text=texts[idx], score=score, found="exact") for idx, score in best]
        return SearchResponse(**build_answer_fields("search", model="peer", tokens=0), results=results, milliseconds={})

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--index", required=True)
    parser.add_argument("--threads", type=int)
    flags = parser.parse_args()
    use_threads(flags.threads)
    index = FolderIndex.open(flags.index)
    texts = index.texts()
    vectors = torch.cat([torch.tensor(block.read_vectors()) for block in index.vectors.iter_blocks(1 << 14)])
    encoder = load_sentence_transformer(flags.model)
    encoder.encode_document(["a text that is not the first", "another"], show_progress_bar=False)
    app = create_app(encoder, texts, vectors)
    with bind(ServerConfig(model=flags.model, port=0)) as listener:
        print(f"serving on http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
