"""Rerank in a retrieval pipeline of LangChain: many cheap hits in, the three best passages out.

pip install ".[langchain]"
python examples/rerank_langchain.py
"""

from __future__ import annotations

import json
from pathlib import Path

from langchain_core.documents import Document

from polyencoder import Ranker
from polyencoder.adapters.langchain import PolyencoderReranker

REPLIES = Path(__file__).parent / "support" / "replies.jsonl"


def main(*, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    with open(REPLIES, encoding="utf-8") as lines:
        documents = [Document(row["text"], metadata={"id": row["id"]}) for row in map(json.loads, lines)]
    reranker = PolyencoderReranker(model=Ranker.load(encoder), top_n=3)  # or model="http://127.0.0.1:8000", a server

    question = "can my rain jacket go into the washing machine"
    retrieved = documents  # in a pipeline: retriever.invoke(question), with k = 50 rather than 3
    for document in reranker.compress_documents(retrieved, question):
        print(f"{document.metadata['relevance_score']:.3f}  {document.metadata['id']:10}  {document.page_content}")


if __name__ == "__main__":
    main()
