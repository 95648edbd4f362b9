"""Rankers as rerankers of LangChain, LlamaIndex and Haystack, each an extra."""
