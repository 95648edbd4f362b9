"""`Ranker`, which ranks, scores, encodes and searches texts, and its parts."""
