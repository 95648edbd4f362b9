"""Encoding: texts to vectors and scores, in batches; the protocol of a ranker."""
