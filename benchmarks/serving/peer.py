"""The peer: sentence-transformers behind FastAPI, a bi-encoder of the same weights, one request after the other.

    python -m benchmarks.serving.peer --model MODEL --index INDEX --threads 2

It takes and gives what ours does, and does nothing else: no limits, no metrics, no faults foreseen. Its model has one
thread that requests wait for, which is faster than FastAPI's forty, in which they take the cores from each other.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import uvicorn
from fastapi import FastAPI

from benchmarks.common import use_threads
from benchmarks.search.encoding import load_sentence_transformer
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.open import open_index
from polyencoder.ranker import Ranker
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.messages import build_answer_fields
from polyencoder.serving.rerank import RerankRequest, RerankResponse, Result
from polyencoder.serving.run import bind
from polyencoder.serving.search import SearchRequest, SearchResponse, SearchResult

T = TypeVar("T")


def create_app(encoder: Any, texts: list[str], vectors: torch.Tensor) -> FastAPI:
    """An application around a SentenceTransformer and candidates with their vectors [n, dim]."""
    app = FastAPI(title="peer")
    vectors = torch.nn.functional.normalize(vectors, dim=1)
    model = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))

    async def call_on_model(call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(model, call)

    def encode(texts: list[str]) -> torch.Tensor:
        encoded: torch.Tensor = encoder.encode(
            texts, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        return encoded

    @app.post("/v1/rerank", response_model_exclude_none=True)
    async def rerank(request: RerankRequest) -> RerankResponse:
        documents = [one if isinstance(one, str) else one.text for one in request.documents]

        def score_all() -> tuple[list[int], list[float]]:
            ranked = (encode(documents) @ encode([" ".join(request.collect_turns(system="leave-out"))])[0]).sort(
                descending=True
            )
            return ranked.indices.tolist(), ranked.values.tolist()

        results = [
            Result(index=idx, relevance_score=score) for idx, score in zip(*await call_on_model(score_all), strict=True)
        ]
        return RerankResponse(**build_answer_fields("rerank", model="peer", tokens=0), results=results, meta={})

    @app.post("/v1/search", response_model_exclude_none=True)
    async def search(request: SearchRequest) -> SearchResponse:
        def search_nearest() -> tuple[list[int], list[float]]:
            best = (vectors @ encode([" ".join(request.collect_turns(system="leave-out"))])[0]).topk(request.top_k)
            return best.indices.tolist(), best.values.tolist()

        results = [
            SearchResult(id=str(idx), text=texts[idx], score=score, found="exact")
            for idx, score in zip(*await call_on_model(search_nearest), strict=True)
        ]
        return SearchResponse(**build_answer_fields("search", model="peer", tokens=0), results=results, milliseconds={})

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--index", required=True)
    parser.add_argument("--threads", type=int)
    flags = parser.parse_args()
    use_threads(flags.threads)
    ranker = Ranker.from_pretrained(flags.model, device="cpu")
    index = open_index(flags.index, ranker)
    if not isinstance(index, FolderIndex):
        raise SystemExit(f"{flags.index}: the peer reads the folder of an index")
    texts = index.texts()
    vectors = torch.cat([torch.tensor(block.read_vectors()) for block in index.vectors.iter_blocks(1 << 14)])
    with tempfile.TemporaryDirectory() as folder:
        encoder = load_sentence_transformer(ranker, Path(folder))
    encoder.encode(["a text that is not the first", "another"], show_progress_bar=False)
    app = create_app(encoder, texts, vectors)
    with bind(ServerConfig(model=flags.model, port=0)) as listener:
        print(f"serving on http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
