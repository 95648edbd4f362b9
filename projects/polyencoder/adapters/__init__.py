"""Rankers as the re-rankers of other frameworks: `langchain`, `llama_index`, `haystack`, each an extra of its name."""
