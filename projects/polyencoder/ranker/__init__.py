"""`Ranker` and what it is made of: ranks, scores, encodes and searches texts."""
